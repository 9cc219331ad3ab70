// A relay whose publisher is the sink of the run: it appends every attempt to the history, before and after.
import { setTimeout as delay } from 'node:timers/promises'
import { config, events, fromBuild, history, random, serve, worker } from './recorded-process.mjs'

const { relay } = await fromBuild('outbox/index.js')

/** The tokens of attempts that are not over, by row: the events of settlements have none. */
const open = new Map()

function begin({ id, token }) {
  const tokens = open.get(id) ?? new Set()
  open.set(id, tokens.add(String(token)))
}

function end(id, token) {
  const tokens = open.get(id)
  tokens?.delete(String(token))
  if (tokens?.size === 0) open.delete(id)
}

events.on('settled', ({ ids, outcome }) => {
  for (const id of ids) {
    history.write({ type: 'settled', worker, row: id, tokens: [...(open.get(id) ?? [])], outcome })
    open.delete(id)
  }
})
for (const type of ['fencedOff', 'lost', 'failed']) {
  events.on(type, ({ id, token, reason, error, outcome, isUncertain }) => {
    history.write({ type, worker, row: id, token, reason, outcome, isUncertain, error })
    if (type === 'fencedOff') end(id, token)
  })
}
events.on('reaped', ({ id, token, owner, outcome, evicted }) => {
  history.write({ type: 'reaped', worker, row: id, token, owner, outcome, evicted })
})

/** What a payload asks of the sink, besides to accept it. */
const behaviours = {
  async blocks({ payload, attempt }) {
    if (attempt > 1) return
    history.write({ type: 'blocking', worker })
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, payload.blockMs)
  },
  async rejects({ id, token }) {
    history.write({ type: 'rejected', worker, row: id, token })
    throw new Error('the sink rejects this event')
  },
  async kills({ id, token }) {
    history.write({ type: 'rejected', worker, row: id, token })
    process.kill(process.pid, 'SIGKILL')
  },
}

const DONE = { name: 'done', args: {} }

/** The sink is the history. */
const sink = {
  async publish(batch) {
    await delay(random.between(...(config.publishMs ?? [1, 30])))
    const answers = []
    for (const event of batch) {
      const error = await behaviours[event.payload.behaviour]?.(event).catch((thrown) => thrown)
      answers.push(error ?? DONE)
    }
    return answers
  },
}

/** The sink is a real broker, and the history has what it acknowledged. */
async function broker() {
  const { redisPublisher } = await fromBuild('outbox/publishers/redis.js')
  return redisPublisher({ url: config.redisUrl, stream: 'events', envelope: { cloudevents: 'structured' } })
}

const held = new Map()

/** A faulty sink, for the test of the checker, takes every second event of a key before the one that precedes it. */
function record(line) {
  const earlier = held.get(line.key)
  held.delete(line.key)
  if (config.swaps === true && line.key !== undefined && earlier === undefined) held.set(line.key, line)
  else
    for (const taken of [line, earlier])
      if (taken !== undefined) history.write({ type: 'accepted', ...taken })
}

const target = config.redisUrl === undefined ? sink : await broker()

const publisher = {
  ...target,
  name: 'sink',
  maxBatch: config.maxBatch ?? 10,
  async publish(batch, context) {
    if (config.crashes === true) {
      history.write({ type: 'crashed', worker })
      process.kill(process.pid, 'SIGKILL')
    }
    const lines = batch.map((event) => {
      const { id, eventId, token, orderingKey, attempt } = event
      begin(event)
      const line = { worker, row: id, eventId, token, key: orderingKey }
      history.write({ type: 'attempt', ...line, attempt, clock: Date.now() })
      return line
    })
    const answers = (await target.publish(batch, context)) ?? batch.map(() => DONE)
    for (const [i, answer] of answers.entries()) if (answer.name === 'done') record(lines[i])
    return answers
  },
}

const { settings, retry } = config
await serve([relay({ publisher, retention: false, settings, retry })])
