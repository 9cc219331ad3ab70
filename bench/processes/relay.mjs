// A worker process with relays, controlled by the calls of a scenario. The type of an event decides what its handler does.
import { loadFrom } from '../builds.mjs'
import { withClient } from '../client.mjs'
import { createClock, quantiles } from '../clock.mjs'
import { TYPES } from '../event-types.mjs'
import { setTimeout as delay } from 'node:timers/promises'
import { report, serve } from './calls.mjs'

const RETRY_MS = 3_600_000
const REPORT_MS = 20

let modules
const relays = new Map()

/** A number that grows, and promises that it will reach another one. */
function createCount() {
  let value = 0
  const waiting = new Set()
  return {
    get value() {
      return value
    },
    add(more = 1) {
      value += more
      for (const one of waiting) {
        if (value < one.target) continue
        waiting.delete(one)
        one.resolve()
      }
    },
    async reaches(target) {
      if (value >= target) return
      const { promise, resolve } = Promise.withResolvers()
      waiting.add({ target, resolve })
      await promise
    },
  }
}

const now = () => performance.timeOrigin + performance.now()

function createRelay({ url, settings, tellsStarts = false }) {
  const { Events, handlers, relay, retry, startRuntime } = modules
  const handled = createCount()
  const settled = createCount()
  const waiting = createCount()
  const events = new Events()
  const state = { url, handled, settled, waiting, renewals: 0, events, onHandled() {}, probed() {} }
  const publisher = handlers({
    [TYPES.happened]: async () => {
      handled.add()
      state.onHandled()
    },
    [TYPES.probe]: async () => state.probed(),
    [TYPES.failing]: async () => retry({ delayMs: RETRY_MS, error: 'it always fails' }),
    [TYPES.waiting]: async ({ id }, { signal }) => {
      waiting.add()
      if (tellsStarts) report({ started: id, at: now() })
      await new Promise((_, reject) => {
        signal.addEventListener('abort', () => reject(signal.reason))
      })
    },
  })
  events.on('settled', ({ outcome, ids }) => {
    if (outcome === 'done') settled.add(ids.length)
  })
  events.on('renewed', () => {
    state.renewals += 1
  })
  state.open = async () => {
    state.runtime = await startRuntime({
      databaseUrl: url,
      migrate: false,
      events,
      workers: [relay({ publisher, settings })],
    })
  }
  return state
}

serve({
  async load(build) {
    modules = {
      ...(await loadFrom(build, '.')),
      ...(await loadFrom(build, './outbox')),
      ...(await loadFrom(build, './publishers/handlers')),
    }
  },

  /** Starts a relay, which runs until it is stopped. `tellsStarts`: it reports each event of the type `waiting`. */
  async start(name, options) {
    const state = createRelay(options)
    relays.set(name, state)
    await state.open()
  },

  async stop(name) {
    await relays.get(name).runtime.stop()
    relays.delete(name)
  },

  /** Ends the pause that it was started with. From here on, the number of settled events is reported. */
  async resume(name) {
    const { settled, runtime } = relays.get(name)
    let told = 0
    setInterval(() => {
      if (settled.value === told) return
      told = settled.value
      report({ settled: told })
    }, REPORT_MS)
    runtime.change('outbox', { paused: false })
  },

  async untilWaiting(name, count) {
    await relays.get(name).waiting.reaches(count)
  },

  async untilSettled(name, count) {
    await relays.get(name).settled.reaches(count)
  },

  async renewals(name) {
    return relays.get(name).renewals
  },

  async afterRenewal(name) {
    await relays.get(name).events.next('renewed')
  },

  /**
   * Starts a relay and returns what it took to settle this many events, from the start of the runtime. The clock stops when
   * the answer to the last settlement has arrived; it asks no question whose cost depends on the table. The scenario
   * counts the events in the table afterwards.
   */
  async drain(name, { events, serverPid, ...options }) {
    const clock = createClock(serverPid)
    const state = createRelay(options)
    relays.set(name, state)
    state.onHandled = () => {
      if (state.handled.value === 1) clock.firstHandled()
    }
    clock.start()
    await state.open()
    await state.settled.reaches(events)
    clock.stop()
    return clock.reading()
  },

  /**
   * Starts a relay and returns at which millisecond it had handled each further `step` events, from the first one on, until
   * all are handled or the time is over.
   */
  async steps(name, { events, step, maxMs, ...options }) {
    const state = createRelay(options)
    relays.set(name, state)
    const times = []
    const claimMs = []
    state.onHandled = () => {
      if (state.handled.value === 1 || state.handled.value % step === 0) times.push(performance.now())
    }
    state.events.on('claimed', ({ durationMs }) => claimMs.push(durationMs))
    await state.open()
    await Promise.race([state.handled.reaches(events), delay(maxMs, undefined, { ref: false })])
    const { value: handled } = state.handled
    return { handled, ms: times.map((at) => at - times[0]), claimMs: quantiles(claimMs) }
  },

  /** Milliseconds from the start of a producer's INSERT to the start of the handler, each event with a key of its own. */
  async probe(name, { count, maxPauseMs }) {
    const state = relays.get(name)
    return withClient(state.url, async (client) => {
      const latencies = []
      for (let i = 0; i < count; i += 1) {
        await delay(Math.random() * maxPauseMs)
        const arrival = new Promise((resolve) => {
          state.probed = () => resolve(performance.now())
        })
        const began = performance.now()
        await client.query(
          `insert into leasehold.outbox (event_type, payload, ordering_key) values ($1, '{}', $2)`,
          [TYPES.probe, crypto.randomUUID()],
        )
        latencies.push((await arrival) - began)
      }
      return quantiles(latencies)
    })
  },
})
