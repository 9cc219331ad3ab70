// The sides of a comparison, with the settings in which each is fastest, and what each of them does not do.
import { readFileSync } from 'node:fs'
import { redisVersion } from './redis.mjs'
import { SCENARIOS } from './scenarios.mjs'

/**
 * Settings for each kind of keys. A system without settings for a kind does not take part in it; `LEFT_OUT` says why.
 *
 * - graphile-worker: with keys, a fetch takes one job of each queue, so it comes back short and the next one waits for the
 *   poll interval: 10,000 jobs in 1,000 queues drained at 685/s with the default of 2 s, and at 15,300/s with 5 ms. For one
 *   hot key, these were the fastest of nine settings tried (439/s).
 */
const PEERS = {
  'graphile-worker': {
    none: { worker: { localQueue: { size: 1_000 }, concurrentJobs: 24, pollInterval: 2 } },
    many: { worker: { localQueue: { size: 1_000 }, concurrentJobs: 24, pollInterval: 2 } },
    hot: { worker: { concurrentJobs: 2, pollInterval: 1, completeJobBatchDelay: -1, failJobBatchDelay: -1 } },
  },
  'pg-boss': {
    none: { batchSize: 500, localConcurrency: 4 },
    many: { batchSize: 500, localConcurrency: 4 },
  },
  bullmq: {
    none: { concurrency: 100, appendfsync: 'everysec' },
    hot: { concurrency: 1, appendfsync: 'everysec' },
  },
  'bullmq-fsync': {
    none: { concurrency: 300, appendfsync: 'always' },
    hot: { concurrency: 1, appendfsync: 'always' },
  },
  'bullmq-postgres': {
    none: { concurrency: 20 },
    hot: { concurrency: 1 },
  },
  pgque: { none: {}, many: {}, hot: {} },
}

/** What a name in `PEERS` runs, where that is not the name itself. */
const SYSTEMS = { 'bullmq-fsync': 'bullmq' }

/** Enough of them to see in a few seconds that everything works. */
export const QUICK_PEERS = ['graphile-worker', 'pg-boss', 'bullmq', 'pgque']

/**
 * Those that store an event durably before they answer and settle each event by itself, as we do. BullMQ does so with
 * `appendfsync always`; PgQue acknowledges batches. The others are shown and not compared.
 */
export const COMPARABLE_PEERS = ['graphile-worker', 'pg-boss', 'bullmq-fsync', 'bullmq-postgres']

export const PEER_NAMES = Object.keys(PEERS)

const NO_KEYS = {
  many: 'ordering by key (groups) is part of BullMQ Pro, which is not on the registry',
  stuck: 'it has no ordering keys',
}

const LEFT_OUT = {
  'pg-boss': {
    hot: 'a batch of one ignores `burstWhenBatchFull`, so each job of one key waits for the shortest poll interval of 0.5 s',
    stuck: 'a failed job fails its whole batch (`perJobResults` has not been tried)',
  },
  bullmq: { ...NO_KEYS, heldSnapshot: 'Redis has no snapshots that a session could hold' },
  'bullmq-fsync': { ...NO_KEYS, heldSnapshot: 'Redis has no snapshots that a session could hold' },
  'bullmq-postgres': NO_KEYS,
  pgque: { stuck: 'a failed event is retried later and does not hold up the next ones' },
}

/** A side as scenarios and drains use it. `options(keys)`: for which kind of keys. */
export function peer(name) {
  const system = SYSTEMS[name] ?? name
  return { name, system, options: (keys) => PEERS[name][keys] }
}

export function leaseholdSide(build, { name = 'leasehold', maxBatch = 1, ...options } = {}) {
  return { name, system: 'leasehold', options: () => ({ build, maxBatch, ...options }) }
}

/** The same, where producers send a prepared INSERT in the place of `outbox.enqueue`. */
export const plainSqlSide = (build, options) =>
  leaseholdSide(build, { name: 'leasehold (plain SQL)', plainSql: true, ...options })

/** Why a side has no figures in a scenario of `drain`; undefined: it takes part. */
export function leftOutOf({ name }, scenarioName) {
  const { keys, stuck = false, heldSnapshot = false } = SCENARIOS[scenarioName]
  if (LEFT_OUT[name] === undefined) return undefined
  if (stuck) return LEFT_OUT[name].stuck
  return (heldSnapshot ? LEFT_OUT[name].heldSnapshot : undefined) ?? LEFT_OUT[name][keys]
}

/** Why a system cannot be measured on this machine; undefined: it can. */
export function notInstalled({ system }) {
  if (system === 'bullmq' && redisVersion() === undefined)
    return 'there is no `redis-server` on the PATH (Debian: `apt-get install redis-server`)'
  if (system === 'pgque' && process.env.PGQUE_SQL === undefined)
    return 'the registry has no package `pgque`; PgQue is installed from one SQL file of its repository: set PGQUE_SQL to its path'
  return undefined
}

/** Systems that were looked for and cannot be measured anywhere. */
export const UNAVAILABLE = [
  '@nestjs/outbox: documented on docs.nestjs.com, but the npm registry answers 404 for it, so there is nothing to install',
]

/** Of the SQL file that is installed; undefined without one. */
export function pgqueVersion() {
  const file = process.env.PGQUE_SQL
  return file && /function pgque\.version\(\)[^']*'([^']+)'/.exec(readFileSync(file, 'utf8'))?.[1]
}

/** What differs between the systems, for the text under a table. */
export const DIFFERENCES = [
  'leasehold: claims and settlements are fenced by a token; published events stay in the table; events of a key are published one at a time, in order',
  'graphile-worker: no fencing: a finished job is deleted by its id, whoever holds it; `queue_name` runs one job of a queue at a time, and a failed job does not hold up its queue',
  'pg-boss: a job is settled only in the attempt that was fetched; completed jobs stay until a maintenance that is switched off here; with keys, the policy `key_strict_fifo`; jobs of a backlog are inserted by the INSERT that its own `insert` sends, without NOTIFY',
  'bullmq: on Redis with `appendonly`, `appendfsync everysec`: up to a second of acknowledged jobs can be lost in a crash; a job cannot be added in the transaction of the business data; a job is settled only with the token of its lock; completed jobs are removed; no ordering by key. `bullmq-fsync` is the same with `appendfsync always`, `bullmq-postgres` the same package with its PostgreSQL backend',
  'pgque: one consumer reads batches in the order of their commits and acknowledges a whole batch at once, by its id; single events are neither claimed nor settled; events stay until their table is truncated',
]

/** What a producer calls under load: what the documentation of each project tells its users to call. */
export const PRODUCERS = [
  'Producers call `outbox.enqueue(tx, …)` (leasehold), `boss.send(…)` with the option `db` (pg-boss), `graphile_worker.add_job(…)`, which `addJob` calls (graphile-worker), and `pgque.send(…)` between BEGIN and COMMIT of a client of `pg`. `queue.add(…)` of BullMQ has no transaction of the user. “leasehold (plain SQL)” is a prepared INSERT',
]
