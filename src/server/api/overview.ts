/** The state of everything at a glance: what waits, what is in flight, who works, and how the database is. */
import { type Count, sumCounts } from '../../operations/count.ts'
import { findWrittenAhead } from '../../operations/written-ahead.ts'
import { countByStatus, oldestPending } from '../../outbox/admin/counts.ts'
import type { Database } from '../../postgres/database.ts'
import { heldSnapshots, type SnapshotHolder } from '../../postgres/snapshots.ts'
import { countSync } from '../../sync/admin/counts.ts'
import { countDeliveries, oldestPendingDelivery } from '../../webhooks/admin/counts.ts'
import { listWorkers, sumCounters, type TableCounters, type WorkerRow } from '../../worker/index.ts'

export interface Overview {
  readonly outbox: {
    readonly pending: Count
    readonly claimed: Count
    readonly published: Count
    readonly dead: Count
    /** For how long the oldest event could have been claimed; null: none can. */
    readonly oldestPendingMs: number | null
    /** Those that wait only because the clock of the database was ahead when they were written. */
    readonly writtenAhead: Count
  }
  readonly webhooks: {
    readonly pending: Count
    readonly inFlight: Count
    readonly delivered: Count
    readonly failed: Count
    readonly oldestPendingMs: number | null
    readonly writtenAhead: Count
  }
  readonly sync: {
    readonly open: Count
    readonly completed: Count
    readonly failed: Count
    readonly chunksWaiting: Count
    readonly chunksLeased: Count
    /** Jobs and chunks. */
    readonly writtenAhead: Count
  }
  readonly workers: {
    readonly alive: number
    readonly missing: number
    readonly dead: number
    readonly stopped: number
    readonly paused: number
    /** Alive, and finishing what they have in flight: they claim nothing more. */
    readonly stopping: number
    readonly inFlight: number
  }
  readonly totals: Totals
  readonly database: DatabaseState
}

type TotalCounts = Pick<TableCounters, 'done' | 'retried' | 'dead' | 'fencedOff' | 'recovered'>

/** What the processes in the registry have done since each of them started: those that run, and those that ended within a day. */
export interface Totals extends TotalCounts {
  /** When the first of them started; null: there are none. */
  readonly since: Date | null
  /** By their names. */
  readonly tables: readonly (TotalCounts & { readonly table: string; readonly workers: readonly string[] })[]
}

export interface DatabaseState {
  readonly version: string
  readonly connections: number
  readonly maxConnections: number
  /** The oldest snapshot that is held: dead rows that are younger cannot be removed. Null: none is older than a second. */
  readonly oldestSnapshot: {
    readonly pid: number
    readonly application: string
    readonly state: string | null
    readonly heldForMs: number
  } | null
  readonly tables: readonly TableState[]
}

export interface TableState {
  readonly name: string
  readonly tableBytes: string
  readonly indexBytes: string
  readonly liveRows: string
  readonly deadRows: string
  readonly lastVacuumAt: Date | null
}

export async function readOverview(
  db: Database,
  { schema = 'leasehold' }: { readonly schema?: string } = {},
): Promise<Overview> {
  const [backlogs, workers, database] = await Promise.all([
    readBacklogs(db, { schema }),
    listWorkers(db, schema),
    readDatabase(db, schema),
  ])
  return { ...backlogs, workers: summarise(workers), totals: totalsOf(workers), database }
}

/** How many waiting rows of each kind are read for those that were written ahead: about 5 ms. */
const MAX_WAITING_READ = 10_000

/** How much waits, and how much is in flight or finished, in the applications. */
export async function readBacklogs(
  db: Database,
  options: { readonly schema: string },
): Promise<Pick<Overview, 'outbox' | 'webhooks' | 'sync'>> {
  const [events, oldestEvent, deliveries, oldestDelivery, sync, ahead] = await Promise.all([
    countByStatus(db, options),
    oldestPending(db, options),
    countDeliveries(db, options),
    oldestPendingDelivery(db, options),
    countSync(db, options),
    db.transaction(async (tx) => findWrittenAhead(tx, options.schema, MAX_WAITING_READ)),
  ])
  const writtenAhead = (prefix: string): Count =>
    sumCounts(ahead.flatMap(({ table, count }) => (table.startsWith(prefix) ? [count] : [])))
  return {
    outbox: {
      pending: events.PENDING,
      claimed: events.CLAIMED,
      published: events.PUBLISHED,
      dead: events.DEAD,
      oldestPendingMs: wholeMs(oldestEvent?.waitingMs),
      writtenAhead: writtenAhead('outbox'),
    },
    webhooks: {
      ...deliveries,
      oldestPendingMs: wholeMs(oldestDelivery?.waitingMs),
      writtenAhead: writtenAhead('webhook'),
    },
    sync: { ...sync, writtenAhead: writtenAhead('sync') },
  }
}

function wholeMs(ms: number | undefined): number | null {
  return ms === undefined ? null : Math.round(ms)
}

function summarise(workers: readonly WorkerRow[]): Overview['workers'] {
  const inState = (wanted: WorkerRow['state']): number =>
    workers.filter(({ state }) => state === wanted).length
  return {
    alive: inState('alive'),
    missing: inState('missing'),
    dead: inState('dead'),
    stopped: inState('stopped'),
    paused: workers.filter(({ state, paused }) => state === 'alive' && paused.length > 0).length,
    stopping: workers.filter(isStopping).length,
    inFlight: workers.reduce((sum, { inFlight }) => sum + inFlight, 0),
  }
}

/** A process that stops gives up all roles but the reaper's. */
function isStopping({ state, roles, serves = {} }: WorkerRow): boolean {
  const names = Object.keys(serves)
  return state === 'alive' && names.length > 0 && !names.some((name) => roles.includes(name))
}

function totalsOf(workers: readonly WorkerRow[]): Totals {
  const byTable = new Map<string, TableCounters[]>()
  for (const { counters } of workers)
    for (const [table, each] of Object.entries(counters.tables))
      byTable.set(table, [...(byTable.get(table) ?? []), each])
  const names = workersByTable(workers)
  const since = workers.reduce((first, { startedAt }) => Math.min(first, startedAt.getTime()), Infinity)
  return {
    since: workers.length === 0 ? null : new Date(since),
    ...totalCounts([...byTable.values()].flat()),
    tables: [...byTable.keys()].toSorted().map((table) => ({
      table,
      workers: names.get(table) ?? [],
      ...totalCounts(byTable.get(table) ?? []),
    })),
  }
}

function totalCounts(all: readonly TableCounters[]): TotalCounts {
  const { done, retried, dead, fencedOff, recovered } = sumCounters(all)
  return { done, retried, dead, fencedOff, recovered }
}

/** The names of the workers that process each table, or did so within the last day. */
export function workersByTable(workers: readonly WorkerRow[]): ReadonlyMap<string, readonly string[]> {
  const names = new Map<string, Set<string>>()
  for (const { serves = {} } of workers)
    for (const [name, { table }] of Object.entries(serves))
      names.set(table, (names.get(table) ?? new Set()).add(name))
  return new Map([...names].map(([table, each]) => [table, [...each].toSorted()]))
}

/** What the views of PostgreSQL show. Sessions of other roles are shown to members of pg_read_all_stats only. */
export async function readDatabase(db: Database, schema: string): Promise<DatabaseState> {
  return db.transaction(async (tx) => {
    const { rows: states } = await tx.query<Omit<DatabaseState, 'tables' | 'oldestSnapshot'>>({
      text: `select current_setting('server_version') as version,
  (select sum(numbackends)::int from pg_stat_database) as connections,
  current_setting('max_connections')::int as "maxConnections"`,
    })
    const { holders } = await heldSnapshots(tx)
    const { rows: tables } = await tx.query<TableState>({
      text: `select relname as name, pg_table_size(relid)::text as "tableBytes", pg_indexes_size(relid)::text as "indexBytes",
  n_live_tup::text as "liveRows", n_dead_tup::text as "deadRows", greatest(last_vacuum, last_autovacuum) as "lastVacuumAt"
from pg_stat_user_tables where schemaname = $1 order by pg_total_relation_size(relid) desc, relname`,
      values: [schema],
    })
    const state = states[0] ?? { version: '', connections: 0, maxConnections: 0 }
    return { ...state, oldestSnapshot: oldestOf(holders), tables }
  })
}

function oldestOf(holders: readonly SnapshotHolder[]): DatabaseState['oldestSnapshot'] {
  for (const { pid, application, state, heldForMs } of holders) {
    if (pid !== null && heldForMs !== null && heldForMs >= 1_000)
      return { pid, application: application ?? '', state, heldForMs: Math.round(heldForMs) }
  }
  return null
}
