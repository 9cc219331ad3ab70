// One part of one side, in a process of its own: `migrate`, `write`, `drain` or `probe`.
import { setTimeout as delay } from 'node:timers/promises'
import { withClient } from './client.mjs'
import { createClock, createProgress, quantiles } from './clock.mjs'
import { openSide } from './sides/index.mjs'
import { createWriter, writeEvents, writeProbe } from './writing.mjs'

const order = JSON.parse(process.argv[2])

// The parent process has ended: nobody waits for the answer.
process.once('disconnect', () => process.exit(1))

async function run() {
  const side = await openSide(order.side)
  // Before any clock starts: the time to load modules is not that of a drain.
  await side.load?.()
  switch (order.part) {
    case 'migrate':
      await side.migrate(order)
      if (order.scenario !== undefined) await createWriter({ ...order, side })
      return {}
    case 'write':
      return write(side)
    case 'drain':
      return drain(side)
    case 'probe':
      return probeOnly(side)
    default:
      throw new Error(`there is no part ${order.part}`)
  }
}

async function write(side) {
  const clock = createClock(order.serverPid)
  clock.start()
  await writeEvents({ ...order, side })
  clock.stop()
  const { ms, serverCpuMs } = clock.reading()
  return { ms, serverCpuMs }
}

async function drain(side) {
  const { url, events, maxMs, windowSize, scenario, probes = 0 } = order
  const clock = createClock(order.serverPid)
  const progress = await createProgress({ url, clock, events, side, windowSize })
  const probe = createProbe()
  clock.start()
  const running = await side.start({
    url,
    events,
    handled: (...args) => progress.handled(...args),
    claimed: (...args) => progress.claimed(...args),
    probed: probe.arrived,
    stuckKey: Boolean(scenario?.stuck),
    wantsTimes: windowSize !== undefined,
  })
  const isComplete = await within(maxMs, progress.settled)
  clock.stop()
  const finished = isComplete ? events : await countFinished(side)
  const told = { ...(await progress.reading({ isComplete })), ...running.facts?.() }
  if (probes > 0) told.probeMs = await probe.run(url, probes)
  await running.stop()
  if (isComplete) await verify(side)
  return { events: finished, ...clock.reading(), ...told }
}

/** False: the time was over first. */
async function within(ms, done) {
  if (ms === undefined) return done.then(() => true)
  return Promise.race([done.then(() => true), delay(ms, false, { ref: false })])
}

/** A figure is only worth something if the work was done. */
async function verify(side) {
  const finished = await countFinished(side)
  if (finished !== order.events) throw new Error(`${finished} events are finished instead of ${order.events}`)
}

async function countFinished(side) {
  if (side.countFinished !== undefined) return side.countFinished(order)
  const values = side.finished.includes('$1') ? [order.events] : []
  const answer = await withClient(order.url, async (client) => client.query(side.finished, values))
  return answer.rows[0].finished
}

/** The latency of single events, with nothing else to do. */
async function probeOnly(side) {
  const probe = createProbe()
  const running = await side.start({ url: order.url, handled() {}, claimed() {}, probed: probe.arrived })
  const probeMs = await probe.run(order.url, order.probes)
  await running.stop()
  return { probeMs }
}

const MAX_PAUSE_MS = 60

/** Milliseconds from the start of a producer's INSERT to the start of the handler, one event at a time. */
function createProbe() {
  let arrived = () => {}
  let written = 0
  return {
    arrived: () => arrived(),
    async run(url, count) {
      return withClient(url, async (client) => {
        const latencies = []
        for (let i = 0; i < count; i += 1) {
          await delay(Math.random() * MAX_PAUSE_MS)
          const arrival = new Promise((resolve) => {
            arrived = () => resolve(performance.now())
          })
          const began = performance.now()
          await writeProbe(client, (order.firstProbe ?? 0) + written)
          written += 1
          latencies.push((await arrival) - began)
        }
        return quantiles(latencies)
      })
    },
  }
}

const answer = await run().catch((error) => ({ error: error.message ?? String(error) }))
process.send(answer, () => process.exit(0))
