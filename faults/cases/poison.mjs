export default {
  name: 'poison',
  title: 'events kill their process or are rejected, and a release crashes on every event',
  workers: 3,
  async run(context) {
    const poison = (behaviour) => ({ type: 'fault.event', payload: { behaviour }, maxAttempts: 3 })
    await context.enqueue([poison('kills'), poison('rejects'), poison('rejects')])
    const runs = { isOver: false }
    const deaths = context.watch('ended', ({ clean }) => !clean)
    const supervised = (async () => {
      while (!runs.isOver) {
        if (context.workers.length < 3) await context.startWorker({ mayFail: true })
        await context.delay(100)
      }
    })()
    for (let round = context.rounds(4); round > 0; round -= 1) {
      // The release that crashes is rolled back once its process has died.
      const broken = await context.startWorker({ crashes: true, mayFail: true })
      await broken.exited
      context.fire('a release that crashes', { worker: broken.id })
    }
    await deaths.seen(3)
    await context.seenFinished('kills')
    runs.isOver = true
    await supervised
    for (let count = deaths.count(); count > 0; count -= 1) context.fire('a worker died')
  },
}
