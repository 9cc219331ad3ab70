// Databases with an outbox, for scenarios that need more than a drain: filled in bulk, or processed by programs of `processes/`.
import { setTimeout as delay } from 'node:timers/promises'
import { withClient } from './client.mjs'
import { keyExpression, payloadExpression } from './scenarios.mjs'
import { startProcess } from './called-process.mjs'
import { TYPES } from './event-types.mjs'
import { runSide } from './side-process.mjs'

let databases = 0

/**
 * A database of one system, dropped afterwards. `work` gets its URL and `part`, which runs a part of the side in a process of
 * its own. `scenario` is what `writeEvents` understands: which keys, and how events are written; without it, the part `write`
 * cannot be run. `template`: the database is a copy of this one, which has no scenario.
 */
export async function withSide(
  { server, side, label = side.system, scenario, events, keyCount, payloadBytes, timeoutMs, template },
  work,
) {
  databases += 1
  const database = `bench_scenario_${databases}`
  const url = await server.createDatabase(database, { template })
  const order = { label, side, url, scenario, events, keyCount, payloadBytes, serverPid: server.pid }
  const part = async (name, more = {}) => runSide({ ...order, part: name, ...more }, { timeoutMs })
  try {
    await part('migrate')
    return await work({ url, part, database })
  } finally {
    await server.dropDatabase(database)
  }
}

/** The same for Leasehold; `work` also gets `startRelay`, whose processes are killed afterwards. `buckets`: of its tables. */
export async function withOutbox({ build, buckets, ...options }, work) {
  const side = { system: 'leasehold', build, maxBatch: 1, buckets }
  const relays = []
  return withSide({ side, payloadBytes: 200, keyCount: 10_000, ...options }, async (database) => {
    const startRelay = async (label = 'relay') => {
      const started = await startRelayProcess({ build, label, timeoutMs: options.timeoutMs })
      relays.push(started)
      return started
    }
    try {
      return await work({ ...database, startRelay })
    } finally {
      await Promise.all(relays.map(async (one) => one.kill()))
    }
  })
}

/** A process with the modules of a build loaded; what it runs is up to its calls. */
export async function startRelayProcess({ build, label, timeoutMs }) {
  const started = startProcess('relay.mjs', { label, timeoutMs })
  await started.call('load', build)
  return started
}

/** Each process reports how many events it has settled, once `start` was called. */
export async function untilAllSettled(relays, events, timeoutMs, start) {
  const { promise, resolve, reject } = Promise.withResolvers()
  const counts = new Map(relays.map((relay) => [relay, 0]))
  for (const relay of relays) {
    relay.onReport(({ settled }) => {
      counts.set(relay, settled)
      const all = counts.values().reduce((sum, count) => sum + count, 0)
      if (all >= events) resolve()
    })
  }
  const timer = setTimeout(() => {
    reject(new Error(`the events were not settled within ${timeoutMs / 1_000} s`))
  }, timeoutMs)
  try {
    await Promise.all([start(), Promise.race([promise, ...relays.map(async ({ ended }) => ended)])])
  } finally {
    clearTimeout(timer)
  }
}

/** Writes events in one statement. The SQL expressions of their keys are in terms of the number `n` of the event. */
export async function insertEvents(url, { type, count, key = keyExpression('none'), payloadBytes = 200 }) {
  await withClient(url, async (client) => {
    await client.query('set synchronous_commit = off')
    await client.query(
      `insert into leasehold.outbox (event_type, payload, ordering_key)
       select $1, ${payloadExpression(payloadBytes)}, ${key} from generate_series(1, $2::int) as n order by n`,
      [type, count],
    )
  })
}

const PORTION = 1_000_000

/**
 * Inserts rows in bulk, past the triggers and with one payload for all, so that ten million take minutes. `columns` are
 * their values, in terms of the number `n` of the event.
 */
async function insertRows(url, { count, columns, payloadBytes = 200 }) {
  await withClient(url, async (client) => {
    await client.query('set synchronous_commit = off; set session_replication_role = replica')
    for (let first = 1; first <= count; first += PORTION) {
      await client.query(
        `insert into leasehold.outbox (payload, ${Object.keys(columns).join(', ')})
         select (select ${payloadExpression(payloadBytes)} from (values (1)) as one (n)), ${Object.values(columns).join(', ')}
         from generate_series($1::int, $2::int) as n`,
        [first, Math.min(first + PORTION - 1, count)],
      )
    }
  })
}

/** Events that were published before; their claims and settlements took the usual course elsewhere. */
export async function insertFinished(url, { count, keyCount }) {
  const columns = {
    event_type: `'${TYPES.finished}'`,
    ordering_key: keyExpression('many', keyCount),
    status: "'PUBLISHED'",
    lock_token: '1',
    published_at: 'now()',
  }
  await insertRows(url, { count, columns })
}

/** A backlog without keys. */
export async function insertBacklog(url, { count, payloadBytes }) {
  await insertRows(url, { count, columns: { event_type: `'${TYPES.happened}'` }, payloadBytes })
}

const POLL_MS = 20

/** Asks the server until it answers yes; `question` is an SQL expression. */
export async function until(url, question, { timeoutMs, signal }) {
  const deadline = performance.now() + timeoutMs
  await withClient(url, async (client) => {
    for (;;) {
      signal?.throwIfAborted()
      const { rows } = await client.query(`select (select ${question}) as bench_question`)
      if (rows[0].bench_question) return
      if (performance.now() > deadline) throw new Error(`waited ${timeoutMs / 1_000} s for ${question}`)
      await delay(POLL_MS)
    }
  })
}

/** A figure is only worth something if the work was done: each event was published without a failure and without an expired lease. */
export async function verifyPublished(url, events) {
  const { rows } = await withClient(url, async (client) =>
    client.query(
      `select count(*)::int as published from leasehold.outbox
       where event_type = $1 and status = 'PUBLISHED' and attempts = 0 and expiries = 0`,
      [TYPES.happened],
    ),
  )
  const [{ published }] = rows
  if (published !== events) throw new Error(`${published} events are published instead of ${events}`)
}
