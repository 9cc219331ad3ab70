export default {
  name: 'late-writes',
  title: 'the network delivers the settlements of a worker after its leases have expired',
  // Whoever takes over a row still holds it when the late settlement arrives.
  worker: { publishMs: [100, 900] },
  produces: { pauseMs: 150, keys: 40 },
  times: 5,
  async step(context) {
    const worker = context.anyWorker()
    const reaped = context.watch('reaped', ({ owner }) => owner === worker.id)
    const repeated = context.watch('attempt', (line) => line.worker !== worker.id && Number(line.token) > 1)
    await context.seen('attempt', 1, (line) => line.worker === worker.id)
    worker.proxy.hold()
    try {
      await reaped.seen()
      await repeated.seen()
    } finally {
      const late = worker.proxy.flush().filter((statement) => /leasehold:settle/.test(statement))
      if (late.length > 0) context.fire('late settlements', { worker: worker.id, count: late.length })
    }
    await context.accepted(10)
  },
}
