/**
 * Finds processes that died without deregistering (RULE-020-052): the session on which a process says that it is alive
 * ends with it, long before its leases do. Where the session is unknown (a pooler hides it), its leases expire instead.
 */
import { type Clock, systemClock } from '../../clock.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable, Statement } from '../../postgres/queryable.ts'

export interface DeadWorker {
  readonly id: string
  readonly host: string
  readonly pid: number
  readonly lastSeenAt: Date
}

export interface CheckRequest {
  /** The process that checks: none declares itself dead. */
  readonly self: string
  readonly graceMs: number
  /** `false`: only record which processes are missing. */
  readonly declare: boolean
  /** Processes that are not to be declared dead yet. */
  readonly spared: readonly string[]
  /** Processes whose leases are being taken back: have they returned? */
  readonly evicted: readonly string[]
}

export interface Check {
  /** Declared dead by this check, and by no other. */
  readonly died: readonly DeadWorker[]
  /** Their session has ended, and they may still return. */
  readonly missing: readonly string[]
  /** Those of them whose session ended with a restart of the database, or belonged to the server it has replaced. */
  readonly restarted: readonly string[]
  /** Declared dead within the last minute, by any reaper; and of `evicted`, those that have not returned. */
  readonly stillDead: readonly string[]
}

/**
 * One statement, which writes nothing while nothing changes.
 *
 * `without_session` may be outdated when it is acted upon: a process returned meanwhile, or another reaper was faster. So
 * the row is locked first, and its session compared with the one that was not found, as a hashed subplan
 * (docs/decisions/002-plans.md), which is re-evaluated on the row as it is then. A row that is locked is checked next time.
 */
export function checkStatement(schema: string, request: CheckRequest): Statement {
  const workers = quoteQualified(schema, 'workers')
  const due = `$3::bool and id <> all ($4::text[]) and missing_since <= now() - $2::float8 * interval '1 millisecond'`
  return {
    text: `
with without_session as materialized (
  select id, session_pid, coalesce(session_start, '-infinity') as session_start
  from ${workers} as w
  where stopped_at is null and died_at is null and session_pid is not null and id <> $1
    and not exists (
      select from pg_stat_activity as s
      where s.pid = w.session_pid
        -- Hidden from a role that may not see the sessions of others: then the pid has to do.
        and (s.backend_start = w.session_start or s.backend_start is null or w.session_start is null)
    )
),
changes as materialized (
  select id
  from ${workers}
  where stopped_at is null and died_at is null
    and ((id, session_pid, coalesce(session_start, '-infinity')) in (select * from without_session)) is true
    and (missing_since is null or (${due}))
  for no key update skip locked
),
changed as (
  update ${workers}
  set missing_since = coalesce(missing_since, now()), died_at = case when ${due} then now() end
  where id = any (array(select id from changes))
  returning id, host, pid, last_seen_at, died_at
)
select id, host, pid, last_seen_at as "lastSeenAt", 'died' as state from changed where died_at is not null
union all
select id, null, null, null, case when session_start < coalesce(
    -- It starts when the server begins to take writes: also after a crash, and when a standby is promoted. Shown to members
    -- of pg_read_all_stats only.
    (select max(backend_start) from pg_stat_activity where backend_type = 'walwriter'),
    pg_postmaster_start_time()) then 'restarted' else 'missing' end
from without_session
where id not in (select id from changed where died_at is not null)
union all
select id, null, null, null, 'stillDead' from ${workers}
where died_at > now() - interval '1 minute' or (id = any ($5::text[]) and coalesce(died_at, stopped_at) is not null)`,
    values: [request.self, request.graceMs, request.declare, request.spared, request.evicted],
  }
}

type CheckRow =
  | (DeadWorker & { readonly state: 'died' })
  | { readonly id: string; readonly state: 'missing' | 'restarted' | 'stillDead' }

export async function findDeadWorkers(db: Queryable, schema: string, request: CheckRequest): Promise<Check> {
  const { rows } = await db.query<CheckRow>(checkStatement(schema, request))
  const idsOf = (state: CheckRow['state']): string[] =>
    rows.filter((row) => row.state === state).map(({ id }) => id)
  return {
    died: rows.flatMap((row) => {
      if (row.state !== 'died') return []
      const { id, host, pid, lastSeenAt } = row
      return [{ id, host, pid, lastSeenAt }]
    }),
    missing: [...idsOf('missing'), ...idsOf('restarted')],
    restarted: idsOf('restarted'),
    stillDead: idsOf('stillDead'),
  }
}

/**
 * Declares a process dead whose end was seen by whoever started it, so that nobody has to miss its session first. Returns
 * undefined if it had stopped in an orderly way, or was declared dead before. `missing_since` stays null: by that the
 * registry shows how the death was found.
 */
export async function declareDead(
  db: Queryable,
  schema: string,
  id: string,
): Promise<DeadWorker | undefined> {
  const { rows } = await db.query<DeadWorker>({
    text: `
update ${quoteQualified(schema, 'workers')}
set died_at = now(), missing_since = null
where id = $1 and stopped_at is null and died_at is null
returning id, host, pid, last_seen_at as "lastSeenAt"`,
    values: [id],
  })
  return rows[0]
}

/**
 * How long a living process may take to reconnect after the database was away: the listener's longest pause between two
 * attempts, and the time one attempt may take.
 */
export const RECONNECT_MS = 10_000

export interface DeathWatch {
  check(evicted: readonly string[]): Promise<Check>
}

/**
 * Decides from check to check how long a missing process has to return. When the database restarts, every session ends
 * at once, and that is no sign of death; nor is it when a standby takes over, where no session is known. So a process whose
 * session began before the server took writes has `RECONNECT_MS` when the watch begins; and so has every process that is missing after a check that failed, or that came so late that a crash of
 * the server may have gone unnoticed. A process that goes missing between two checks, or before the watch began, has
 * `graceMs`.
 */
export function createDeathWatch(options: {
  readonly db: Queryable
  readonly schema: string
  readonly self: string
  readonly checkMs: number
  readonly graceMs: number
  readonly clock?: Clock
}): DeathWatch {
  const { db, schema, self, checkMs, graceMs, clock = systemClock } = options
  let begun = false
  let watch: { readonly since: number; readonly last: number; readonly spared: readonly string[] } | undefined

  return {
    async check(evicted) {
      const now = clock.monotonicNow()
      const seen = watch !== undefined && now - watch.last <= checkMs + graceMs ? watch : undefined
      // Set when this check has succeeded.
      watch = undefined
      const spared = seen === undefined || now - seen.since >= RECONNECT_MS ? [] : seen.spared
      const declare = seen !== undefined
      const check = await findDeadWorkers(db, schema, { self, graceMs, declare, spared, evicted })
      const suspect = begun ? check.missing : check.restarted
      begun = true
      watch = seen === undefined ? { since: now, last: now, spared: suspect } : { ...seen, last: now }
      return check
    },
  }
}
