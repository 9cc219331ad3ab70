/**
 * The registry: every worker process, from the moment it starts until a day after it has ended. All statements on the
 * `workers` table are here, except the one that finds dead processes (`reaper/dead-workers.ts`).
 */
import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { packageVersion } from '../../package-files.ts'
import { LeaseholdError } from '../../errors.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable, Statement } from '../../postgres/queryable.ts'
import type { PauseReason } from '../events.ts'
import { type Counters, NO_COUNTERS } from './counters.ts'

export interface WorkerInfo {
  readonly id: string
  readonly host: string
  readonly pid: number
  readonly version: string
  readonly roles: readonly string[]
  /** The settings that its workers were started with, and their groups if they are fixed, by the name of the worker. */
  readonly declared?: Readonly<Record<string, object>>
  /** The tables whose expired leases it takes back, as `schema.table`: those where it has lately succeeded. */
  readonly reaps: readonly string[]
  /** What each of its workers processes, by the name of the worker. */
  readonly serves?: Readonly<Record<string, ServedTable>>
}

export interface ServedTable {
  /** As `schema.table`. */
  readonly table: string
  /** The name by which `--only` chooses the worker: `reconcile` for every reconciler. */
  readonly role: string
}

/** A worker does not claim. Plain data: it is sent to the heartbeat's thread, and stored in the registry. */
export interface Pause {
  /** The name of the worker. */
  readonly worker: string
  readonly table: string
  readonly reason: PauseReason
  readonly since: string
  /** What caused it, if it was an error, without the passwords of URLs. */
  readonly error?: string
}

/**
 * - `missing`: its session has ended, or nothing was heard of it; it may return.
 * - `dead`: it did not return, and its leases were taken back.
 */
export type WorkerState = 'alive' | 'missing' | 'dead' | 'stopped'

export interface WorkerRow extends WorkerInfo {
  readonly state: WorkerState
  readonly startedAt: Date
  readonly lastSeenAt: Date
  /** When it was last seen; none once it has stopped or is dead. */
  readonly inFlight: number
  /** Which of its workers did not claim when it was last seen, and why. */
  readonly paused: readonly Pause[]
  /** What it has done since it started. */
  readonly counters: Counters
  readonly stoppedAt: Date | null
  readonly diedAt: Date | null
  /** Whether its death would be noticed before its leases end. */
  readonly sessionVisible: boolean
}

/** This process as the registry shows it. The id is unique unless a given one is not (RULE-020-032). */
export function describeWorker(
  roles: readonly string[],
  options: Partial<Pick<WorkerInfo, 'id' | 'declared' | 'reaps' | 'serves'>> = {},
): WorkerInfo {
  const host = hostname()
  const id = options.id ?? `${host}-${process.pid}-${randomBytes(6).toString('hex')}`
  // In a table without a token column the owner is id#token, and what a dead worker held is found by its start.
  if (id.trim() === '' || id.includes('#')) {
    throw new LeaseholdError('SETTING_INVALID', `The worker id is ${JSON.stringify(id)}.`, {
      remedy: 'Give every worker a unique id that is not empty and has no # in it, or none at all.',
    })
  }
  const { declared, reaps = [], serves } = options
  const known = {
    ...(declared === undefined ? {} : { declared }),
    ...(serves === undefined ? {} : { serves }),
  }
  return { id, host, pid: process.pid, version: packageVersion(), roles, reaps, ...known }
}

/** A process without a visible session is missing after this time: six intervals of its presence. */
export const MISSING_AFTER = '30 seconds'

const WORKER_COLUMNS = `id, host, pid, version, roles, declared, reaps, serves, started_at as "startedAt", last_seen_at as "lastSeenAt",
  case when stopped_at is null and died_at is null then in_flight else 0 end as "inFlight",
  paused, counters, stopped_at as "stoppedAt", died_at as "diedAt",
  session_pid is not null as "sessionVisible",
  case
    when stopped_at is not null then 'stopped'
    when died_at is not null then 'dead'
    when missing_since is not null or last_seen_at < now() - interval '${MISSING_AFTER}' then 'missing'
    else 'alive'
  end as state`

/** In the order in which they started. */
export async function listWorkers(db: Queryable, schema: string): Promise<WorkerRow[]> {
  const { rows } = await db.query<WorkerRow>({
    text: `
select ${WORKER_COLUMNS}
from ${quoteQualified(schema, 'workers')}
order by started_at, id`,
  })
  return rows
}

/** A process that has to do with a table. */
export interface WorkerOfTable extends WorkerRow {
  /** By the name of the worker: the settings it was started with, and its groups where they are known from the start. */
  readonly declared: Readonly<Record<string, DeclaredWorker>>
  readonly missingSince: Date | null
}

export type DeclaredWorker = Readonly<Record<string, unknown>> & { readonly groups?: readonly string[] }

/** How many processes are read at most. */
const MAX_WORKERS_OF_TABLE = 1_000

/**
 * The processes that run, or were started with, one of these workers, those that reap the table, and the owner of a lease
 * on one of its rows. Those that were heard of last come first.
 */
export async function listWorkersOfTable(
  db: Queryable,
  schema: string,
  of: { readonly names: readonly string[]; readonly table: string; readonly owner: string | null },
): Promise<WorkerOfTable[]> {
  const { rows } = await db.query<WorkerOfTable>({
    text: `
select ${WORKER_COLUMNS}, declared, missing_since as "missingSince"
from ${quoteQualified(schema, 'workers')}
where roles && $1::text[] or declared ?| $1::text[] or $2::text = any (reaps) or id = $3::text
order by last_seen_at desc, id
limit ${MAX_WORKERS_OF_TABLE}`,
    values: [of.names, of.table, of.owner],
  })
  return rows
}

/**
 * Those of the tables (`schema.table`) that no reaper takes care of: no process that is alive has reaped the table
 * successfully (RULE-020-020, D13).
 */
export async function unreapedTables(
  db: Queryable,
  schema: string,
  tables: readonly string[],
): Promise<string[]> {
  const { rows } = await db.query<{ name: string }>({
    text: `
select name from unnest($1::text[]) as name
where not exists (
  select from ${quoteQualified(schema, 'workers')}
  where stopped_at is null and died_at is null and name = any (reaps)
    and last_seen_at > now() - interval '${MISSING_AFTER}'
)`,
    values: [tables],
  })
  return rows.map(({ name }) => name)
}

/**
 * Deletes a bounded number of processes that ended more than a day ago, or were not heard of for a day, which is how one
 * that connects through a pooler ends. Returns how many.
 */
export async function forgetWorkers(db: Queryable, schema: string): Promise<number> {
  const workers = quoteQualified(schema, 'workers')
  const { rowCount } = await db.query({
    text: `
delete from ${workers}
where id = any (array(
  select id from ${workers}
  where coalesce(stopped_at, died_at, last_seen_at) < now() - interval '1 day'
  limit 1000
  for update skip locked
))`,
  })
  return rowCount ?? 0
}

/** Deletes a bounded number of the oldest entries of the audit that are older than this. Returns how many. */
export async function forgetAudit(db: Queryable, schema: string, olderThanMs: number): Promise<number> {
  const audit = quoteQualified(schema, 'audit')
  const { rowCount } = await db.query({
    text: `
delete from ${audit}
where id = any (array(
  select id from ${audit} where at < now() - $1::float8 * interval '1 millisecond' order by at limit 10000
))`,
    values: [olderThanMs],
  })
  return rowCount ?? 0
}

/** What `presence` answers. */
export interface PresenceRow {
  /** This worker had been declared dead, and is not. */
  readonly had_died: boolean
  /** How many buckets the tables of our own applications have. */
  readonly buckets: number
  /** How many processes that are alive have each role. A process is not counted by its first presence. */
  readonly processes: Readonly<Record<string, number>>
}

/**
 * Says that a process is alive, on the session that shows it. The session is stored only if the process id that the
 * server gave when it connected (`backendPid`) is that of the backend that runs this statement: a pooler hides it.
 * The row is locked before it is read, so that a death declared at this very moment is not overlooked.
 * The statement has no name: it may travel through a pooler without prepared statements.
 */
export function presence(
  schema: string,
  worker: WorkerInfo,
  inFlight: number,
  backendPid: number | undefined,
  paused: readonly Pause[] = [],
  counters: Counters = NO_COUNTERS,
): Statement {
  const workers = quoteQualified(schema, 'workers')
  return {
    text: `
with before as materialized (
  select died_at is not null and host = $2 and pid = $3::int as had_died
  from ${workers}
  where id = $1
  for no key update
)
insert into ${workers} as w (id, host, pid, version, roles, declared, reaps, serves, in_flight, paused, counters, session_pid, session_start)
select $1, $2, $3::int, $4, $5::text[], $8::jsonb, $9::text[], $11::jsonb, $6::int, $10::jsonb, $12::jsonb, session.pid, session.backend_start
from (select count(*) from before) as locked
left join pg_stat_activity as session on session.pid = pg_backend_pid() and session.pid = $7::int
on conflict (id) do update set
  host = excluded.host,
  pid = excluded.pid,
  version = excluded.version,
  roles = excluded.roles,
  declared = excluded.declared,
  reaps = excluded.reaps,
  serves = excluded.serves,
  started_at = case
    when w.stopped_at is null and (w.host, w.pid) = (excluded.host, excluded.pid) then w.started_at
    else excluded.started_at
  end,
  last_seen_at = excluded.last_seen_at,
  in_flight = excluded.in_flight,
  paused = excluded.paused,
  counters = excluded.counters,
  session_pid = excluded.session_pid,
  session_start = excluded.session_start,
  missing_since = null,
  stopped_at = null,
  died_at = null
returning coalesce((select had_died from before), false) as had_died, (
  select coalesce(jsonb_object_agg(role, count), '{}')
  from (
    select role, count(*)
    from ${workers} as o, unnest(o.roles) as role
    where o.stopped_at is null and o.died_at is null and o.last_seen_at >= now() - interval '${MISSING_AFTER}'
    group by role
  ) as by_role
) as processes, ${quoteQualified(schema, 'bucket_count')}() as buckets`,
    values: [
      worker.id,
      worker.host,
      worker.pid,
      worker.version,
      worker.roles,
      inFlight,
      backendPid ?? null,
      JSON.stringify(worker.declared ?? {}),
      worker.reaps,
      JSON.stringify(paused),
      JSON.stringify(worker.serves ?? {}),
      JSON.stringify(counters),
    ],
  }
}

/** The tables that a process reaps have changed. Its next presence would say so as well, seconds later. */
export function reaping(schema: string, id: string, tables: readonly string[]): Statement {
  return {
    text: `update ${quoteQualified(schema, 'workers')} set reaps = $2::text[] where id = $1`,
    values: [id, tables],
  }
}

/**
 * A stop that leaves rows behind, because their handlers ignored their signals. The process does not register as stopped:
 * it is found missing when its session has ended, as if it had been killed, and its rows do not wait for their leases.
 * Where its session is hidden nobody would miss it, so it has stopped, and its leases expire.
 */
export function lastCounters(schema: string, id: string, counters: Counters): Statement {
  return {
    text: `
update ${quoteQualified(schema, 'workers')}
set counters = $2::jsonb, stopped_at = case when session_pid is null then now() end
where id = $1`,
    values: [id, JSON.stringify(counters)],
  }
}

/**
 * A clean stop: the process is not missing. Send it after the last presence, which would undo it. Without counters, those
 * of the last presence remain.
 */
export function stopped(schema: string, id: string, counters?: Counters): Statement {
  return {
    text: `
update ${quoteQualified(schema, 'workers')}
set stopped_at = now(), last_seen_at = now(), in_flight = 0, paused = '[]',
  counters = coalesce($2::jsonb, counters), session_pid = null, session_start = null, missing_since = null
where id = $1`,
    values: [id, counters === undefined ? null : JSON.stringify(counters)],
  }
}
