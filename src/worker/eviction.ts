/**
 * Finds workers that died without a word (RULE-020-052): the session on which a worker says that it is there ends with
 * its process, long before its leases do. A worker whose session is unknown (a pooler hides it) is left to its leases.
 */
import { type Clock, systemClock } from '../clock.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable, Statement } from '../postgres/queryable.ts'

export interface DeadWorker {
  readonly id: string
  readonly host: string
  readonly pid: number
  readonly lastSeenAt: Date
}

export interface LookRequest {
  /** Who looks: nobody declares itself dead. */
  readonly self: string
  readonly graceMs: number
  /** `false`: only write down who is missing. */
  readonly declare: boolean
  /** Who is not to be declared dead yet. */
  readonly spared: readonly string[]
  /** Workers that were declared dead before: are they still? */
  readonly evicted: readonly string[]
}

export interface Look {
  /** Declared dead by this look, and by no other. */
  readonly died: readonly DeadWorker[]
  /** Their session is gone, and they may still return. */
  readonly missing: readonly string[]
  /** Those of them whose session ended with a restart of the database. */
  readonly restarted: readonly string[]
  /** Declared dead within the last minute, by whomever, or before and still so. */
  readonly stillDead: readonly string[]
}

/**
 * One statement, and without news one that writes nothing.
 *
 * `gone` may be outdated when it is acted upon: a worker came back meanwhile, or another reaper was faster. So the row
 * is locked first, and the session that was looked for compared with the one that it has by then, as a hashed subplan
 * (docs/decisions/002-plans.md), which is evaluated again on the row as it is now. What is locked is looked at next time.
 */
export function lookStatement(schema: string, request: LookRequest): Statement {
  const workers = quoteQualified(schema, 'workers')
  const due = `$3::bool and id <> all ($4::text[]) and missing_since <= now() - $2::float8 * interval '1 millisecond'`
  return {
    text: `
with gone as materialized (
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
news as materialized (
  select id
  from ${workers}
  where stopped_at is null and died_at is null
    and ((id, session_pid, coalesce(session_start, '-infinity')) in (select * from gone)) is true
    and (missing_since is null or (${due}))
  for no key update skip locked
),
changed as (
  update ${workers}
  set missing_since = coalesce(missing_since, now()), died_at = case when ${due} then now() end
  where id = any (array(select id from news))
  returning id, host, pid, last_seen_at, died_at
)
select id, host, pid, last_seen_at as "lastSeenAt", 'died' as state from changed where died_at is not null
union all
select id, null, null, null, case when session_start < pg_postmaster_start_time() then 'restarted' else 'missing' end
from gone
where id not in (select id from changed where died_at is not null)
union all
select id, null, null, null, 'stillDead' from ${workers}
where died_at is not null and (id = any ($5::text[]) or died_at > now() - interval '1 minute')`,
    values: [request.self, request.graceMs, request.declare, request.spared, request.evicted],
  }
}

type LookRow =
  | (DeadWorker & { readonly state: 'died' })
  | { readonly id: string; readonly state: 'missing' | 'restarted' | 'stillDead' }

export async function findDead(db: Queryable, schema: string, request: LookRequest): Promise<Look> {
  const { rows } = await db.query<LookRow>(lookStatement(schema, request))
  const idsOf = (state: LookRow['state']): string[] =>
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
 * After the database was away, a living worker may take so long to be back: the listener's longest pause between two
 * attempts, and the time one may take.
 */
export const RETURN_MS = 10_000

export interface Watch {
  readonly look: (evicted: readonly string[]) => Promise<Look>
}

/**
 * Looks again and again. When the database restarts, every session ends at once, and that is no sign of death: whose
 * session is older than the server gets the time to return when the watch begins. So does everybody who is missing
 * after a look that failed, or that came so late that a crash of the server may have gone unnoticed. Who goes missing
 * while the watch looks on, or had gone before it began, gets the grace.
 */
export function createWatch(options: {
  readonly db: Queryable
  readonly schema: string
  readonly self: string
  readonly checkMs: number
  readonly graceMs: number
  readonly clock?: Clock
}): Watch {
  const { db, schema, self, checkMs, graceMs, clock = systemClock } = options
  let begun = false
  let watch: { readonly since: number; readonly last: number; readonly spared: readonly string[] } | undefined

  return {
    async look(evicted) {
      const now = clock.monotonicNow()
      const seen = watch !== undefined && now - watch.last <= checkMs + graceMs ? watch : undefined
      // It is set again when this look has succeeded.
      watch = undefined
      const spared = seen === undefined || now - seen.since >= RETURN_MS ? [] : seen.spared
      const declare = seen !== undefined
      const look = await findDead(db, schema, { self, graceMs, declare, spared, evicted })
      const suspect = begun ? look.missing : look.restarted
      begun = true
      watch = seen === undefined ? { since: now, last: now, spared: suspect } : { ...seen, last: now }
      return look
    },
  }
}
