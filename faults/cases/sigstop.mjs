export default {
  name: 'sigstop',
  title: 'a worker process is stopped for longer than its lease, and continues while others hold its rows',
  worker: { publishMs: [100, 900] },
  produces: { pauseMs: 150, keys: 40 },
  times: 5,
  async step(context) {
    const worker = context.anyWorker()
    const reaped = context.watch('reaped', ({ owner }) => owner === worker.id)
    const repeated = context.watch('attempt', (line) => line.worker !== worker.id && line.attempt > 1)
    // In the middle of a publication.
    await context.seen('attempt', 1, (line) => line.worker === worker.id)
    worker.signal('SIGSTOP')
    try {
      await reaped.seen()
      await repeated.seen()
    } finally {
      worker.signal('SIGCONT')
    }
    context.fire('SIGSTOP past the lease', { worker: worker.id })
    await context.accepted(10)
  },
}
