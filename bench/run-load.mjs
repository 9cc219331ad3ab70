// A process that produces events, or relays them, and answers questions about it until its parent disconnects.
import { setTimeout as delay } from 'node:timers/promises'
import { quantiles } from './clock.mjs'
import { epochMs, keysFor, payloadsOf } from './producer.mjs'
import { openSide } from './sides/index.mjs'

const order = JSON.parse(process.argv[2])

/** Answers for each role: functions that take the values of a question. */
const ROLES = { producer: startProducer, relay: startRelay, prober: startProber }

async function startProducer(side) {
  const { url, connections, keys, keyCount, payloadBytes } = order
  const producers = await Promise.all(
    Array.from({ length: connections }, async () => side.openProducer({ url })),
  )
  const [nextKey, nextPayload] = [keysFor(keys, keyCount), payloadsOf(payloadBytes)]
  let written = 0
  let producing

  /** `perSecond`: of all connections together; undefined: as fast as they can. */
  const produce = async (producer, { until, perSecond, phase }) => {
    const began = performance.now()
    const intervalMs = perSecond === undefined ? 0 : (1_000 * connections) / perSecond
    // Connections take turns.
    for (let n = 0; ; n += 1) {
      const waitMs = began + (n + phase / connections) * intervalMs - performance.now()
      if (waitMs > 0) await delay(waitMs)
      if (performance.now() >= until) return
      await producer.send({ key: nextKey(), payload: nextPayload() })
      written += 1
    }
  }
  return {
    begin({ ms, perSecond }) {
      const until = performance.now() + ms
      producing = Promise.all(
        producers.map(async (producer, phase) => produce(producer, { until, perSecond, phase })),
      )
      // Whoever asks for the end hears of the error.
      producing.catch(() => {})
    },
    count: () => written,
    async finish() {
      await producing
      return written
    },
    async stop() {
      await Promise.all(producers.map(async (producer) => producer.close()))
    },
  }
}

async function startRelay(side) {
  let handled = 0
  let latencies = []
  const running = await side.start({
    url: order.url,
    handled(_createdAt, { sentAt }) {
      handled += 1
      latencies.push(epochMs() - sentAt)
    },
    claimed() {},
    probed() {},
    // Transactions of several producers overlap: the order of ids is not that of commits.
    checksOrder: false,
  })
  return {
    count: () => handled,
    /** Milliseconds from the start of the producer's statement to the handler, since the last time they were asked for. */
    latencies() {
      const told = Float64Array.from(latencies)
      latencies = []
      return told
    },
    stop: async () => running.stop(),
  }
}

/** The longest pause between two probes. Random pauses, so that no poll interval is met at the same moment each time. */
const MAX_PAUSE_MS = 60

/** Relays and produces: one event at a time, the next one some time after the last one was handled. */
async function startProber(side) {
  let arrived = () => {}
  const running = await side.start({
    url: order.url,
    handled: () => arrived(performance.now()),
    claimed() {},
    probed() {},
  })
  const producer = await side.openProducer({ url: order.url })
  const nextPayload = payloadsOf(order.payloadBytes)
  const probe = async () => {
    await delay(Math.random() * MAX_PAUSE_MS)
    const arrival = new Promise((resolve) => {
      arrived = resolve
    })
    const began = performance.now()
    await producer.send({ payload: nextPayload() })
    return (await arrival) - began
  }
  return {
    async probe({ count }) {
      const latencies = []
      while (latencies.length < count) latencies.push(await probe())
      return quantiles(latencies)
    },
    async stop() {
      await producer.close()
      await running.stop()
    },
  }
}

/** Milliseconds of processor time that this process has taken, with all its threads. */
function cpu() {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1_000
}

async function answer(work) {
  try {
    process.send({ answer: await work() })
  } catch (error) {
    process.send({ error: error.message ?? String(error) })
  }
}

let role
process.once('disconnect', () => process.exit(0))
await answer(async () => {
  const side = await openSide(order.side)
  await side.load?.()
  role = await ROLES[order.role](side)
})
process.on('message', ({ question, ...values }) => {
  void answer(async () => (question === 'cpu' ? cpu() : role[question](values)))
})
