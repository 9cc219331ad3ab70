const TRIES = 10

export default {
  name: 'late-writes',
  title: 'the network delivers the settlements of a worker after its leases have expired',
  // Whoever takes over a row still holds it when the late settlement arrives.
  worker: { publishMs: [100, 900] },
  produces: { pauseMs: 150, keys: 40 },
  times: 5,
  async step(context) {
    for (let tries = 1; ; tries += 1) {
      const worker = context.anyWorker()
      const count = await delaySettlements(worker, context)
      if (count > 0) {
        context.fire('late settlements', { worker: worker.id, count })
        break
      }
      if (tries === TRIES) throw new Error(`no settlement was late in ${TRIES} tries`)
    }
    await context.accepted(10)
  },
}

/** How many were late. A worker that got no processor time until its leases had expired settles nothing. */
async function delaySettlements(worker, context) {
  const reaped = context.watch('reaped', ({ owner }) => owner === worker.id)
  const repeated = context.watch('attempt', (line) => line.worker !== worker.id && line.attempt > 1)
  await context.seen('attempt', 1, (line) => line.worker === worker.id)
  worker.proxy.hold()
  let held
  try {
    await reaped.seen()
    await repeated.seen()
  } finally {
    held = worker.proxy.flush()
  }
  return held.filter((statement) => /leasehold:settle/.test(statement)).length
}
