export default {
  name: 'sigkill',
  title: 'worker processes are killed again and again, and replaced',
  times: 12,
  async step(context) {
    const worker = context.anyWorker()
    await worker.kill('SIGKILL')
    context.fire('SIGKILL', { worker: worker.id })
    await context.startWorker()
    await context.delay(context.random.between(0, 600))
  },
}
