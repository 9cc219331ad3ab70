/** The state of everything at a glance: what waits, what is in flight, who works, and how the database is. */
import type { Count } from '../../admin/count.ts'
import { countByStatus, oldestPending } from '../../outbox/admin/counts.ts'
import type { Database } from '../../postgres/database.ts'
import { countSync } from '../../sync/admin/counts.ts'
import { countDeliveries, oldestPendingDelivery } from '../../webhooks/admin/counts.ts'
import { listWorkers, type WorkerRow } from '../../worker/index.ts'

export interface Overview {
  readonly outbox: {
    readonly pending: Count
    readonly claimed: Count
    readonly published: Count
    readonly dead: Count
    /** For how long the oldest event could have been claimed; null: none can. */
    readonly oldestPendingMs: number | null
  }
  readonly webhooks: {
    readonly pending: Count
    readonly inFlight: Count
    readonly delivered: Count
    readonly failed: Count
    readonly oldestPendingMs: number | null
  }
  readonly sync: {
    readonly open: Count
    readonly completed: Count
    readonly failed: Count
    readonly chunksWaiting: Count
    readonly chunksLeased: Count
  }
  readonly workers: {
    readonly alive: number
    readonly missing: number
    readonly dead: number
    readonly stopped: number
    readonly paused: number
    readonly inFlight: number
  }
  readonly database: DatabaseState
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
  const options = { schema }
  const [events, oldestEvent, deliveries, oldestDelivery, sync, workers, database] = await Promise.all([
    countByStatus(db, options),
    oldestPending(db, options),
    countDeliveries(db, options),
    oldestPendingDelivery(db, options),
    countSync(db, options),
    listWorkers(db, schema),
    readDatabase(db, schema),
  ])
  return {
    outbox: {
      pending: events.PENDING,
      claimed: events.CLAIMED,
      published: events.PUBLISHED,
      dead: events.DEAD,
      oldestPendingMs: wholeMs(oldestEvent?.waitingMs),
    },
    webhooks: { ...deliveries, oldestPendingMs: wholeMs(oldestDelivery?.waitingMs) },
    sync,
    workers: summarise(workers),
    database,
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
    inFlight: workers.reduce((sum, { inFlight }) => sum + inFlight, 0),
  }
}

/** What the views of PostgreSQL show. Sessions of other roles are shown to members of pg_read_all_stats only. */
export async function readDatabase(db: Database, schema: string): Promise<DatabaseState> {
  return db.transaction(async (tx) => {
    const { rows: states } = await tx.query<Omit<DatabaseState, 'tables' | 'oldestSnapshot'>>({
      text: `select current_setting('server_version') as version,
  (select sum(numbackends)::int from pg_stat_database) as connections,
  current_setting('max_connections')::int as "maxConnections"`,
    })
    const { rows: snapshots } = await tx.query<NonNullable<DatabaseState['oldestSnapshot']>>({
      text: `select pid, application_name as application, state,
  round(extract(epoch from clock_timestamp() - xact_start) * 1000)::float8 as "heldForMs"
from pg_stat_activity
where backend_type = 'client backend' and backend_xmin is not null and pid <> pg_backend_pid() and xact_start < clock_timestamp() - interval '1 second'
order by age(backend_xmin) desc, xact_start limit 1`,
    })
    const { rows: tables } = await tx.query<TableState>({
      text: `select relname as name, pg_table_size(relid)::text as "tableBytes", pg_indexes_size(relid)::text as "indexBytes",
  n_live_tup::text as "liveRows", n_dead_tup::text as "deadRows", greatest(last_vacuum, last_autovacuum) as "lastVacuumAt"
from pg_stat_user_tables where schemaname = $1 order by pg_total_relation_size(relid) desc, relname`,
      values: [schema],
    })
    const state = states[0] ?? { version: '', connections: 0, maxConnections: 0 }
    return { ...state, oldestSnapshot: snapshots[0] ?? null, tables }
  })
}
