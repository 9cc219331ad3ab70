import { findFaketime, skipWithoutFaketime } from '../faketime.mjs'

const HOUR_MS = 3_600_000
const CLOCKS = [
  { faketime: '+3600s', isSo: ({ offsetMs }) => Math.abs(offsetMs - HOUR_MS) < 600_000 },
  { faketime: '-3600s', isSo: ({ offsetMs }) => Math.abs(offsetMs + HOUR_MS) < 600_000 },
  { faketime: '+0s x2', isSo: ({ speed }) => speed > 1.5 },
  // A clock that is slow trusts its leases for too long: only the token protects the rows.
  { faketime: '+0s x0.2', isSo: ({ speed }) => speed < 0.6 },
]

export default {
  name: 'worker-clock',
  title: 'the clocks of workers are an hour ahead, an hour behind, twice as fast and five times too slow',
  skip: skipWithoutFaketime,
  worker: { publishMs: [20, 600] },
  produces: { pauseMs: 100, keys: 40 },
  workers: 1,
  async run(context) {
    const library = await findFaketime({ threads: true })
    const workers = []
    for (const { faketime } of CLOCKS)
      workers.push(await context.startWorker({ env: { LD_PRELOAD: library, FAKETIME: faketime } }))
    const read = (worker) => {
      const attempts = context.lines('attempt').filter((line) => line.worker === worker.id)
      return { clock: attempts.at(-1)?.clock, at: Date.now() }
    }
    await Promise.all(
      workers.map(async (worker) => context.seen('attempt', 1, (line) => line.worker === worker.id)),
    )
    const before = workers.map((worker) => read(worker))
    await context.delay(context.short ? 4_000 : 10_000)
    await Promise.all(
      workers.map(async (worker) => context.seen('attempt', 1, (line) => line.worker === worker.id)),
    )
    for (const [i, worker] of workers.entries()) {
      const { clock, at } = read(worker)
      const facts = { offsetMs: clock - at, speed: (clock - before[i].clock) / (at - before[i].at) }
      if (!CLOCKS[i].isSo(facts))
        throw new Error(`${CLOCKS[i].faketime} had no effect: ${JSON.stringify(facts)}`)
      context.fire(CLOCKS[i].faketime, { worker: worker.id, ...facts })
    }
  },
}
