export default {
  name: 'rolling-deploy',
  title: 'a rolling deploy: old and new worker processes, with other settings, share the table',
  worker: { settings: { leaseMs: 3_000, heartbeatMs: 900 }, maxBatch: 1 },
  async run(context) {
    const NEW = { settings: { leaseMs: 1_500, heartbeatMs: 400, shutdownTimeoutMs: 1_000 }, maxBatch: 25 }
    for (const old of context.workers) {
      await context.startWorker(NEW)
      const exit = await old.kill('SIGTERM')
      context.fire('SIGTERM', { worker: old.id, exit })
      await context.accepted(10)
    }
  },
}
