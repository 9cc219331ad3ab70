/** Every statement about the `workers` table but the one that finds the dead (eviction.ts). */
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Statement } from '../postgres/queryable.ts'
import type { WorkerInfo } from './registry.ts'

/** What `presence` answers. */
export interface PresenceRow {
  /** This worker had been declared dead, and is not. */
  readonly had_died: boolean
}

/**
 * Says that a worker is there, on the session that shows it. The session is known only where the server's own word
 * about it (`backendPid`, from its first messages) is true of the backend that runs this statement: a pooler hides it.
 * The row is locked before it is read, so that a death declared at this very moment is not overlooked.
 * Without a name: it may travel through a pooler that has no prepared statements.
 */
export function presence(
  schema: string,
  worker: WorkerInfo,
  inFlight: number,
  backendPid: number | undefined,
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
insert into ${workers} as w (id, host, pid, version, roles, in_flight, session_pid, session_start)
select $1, $2, $3::int, $4, $5::text[], $6::int, session.pid, session.backend_start
from (select count(*) from before) as locked
left join pg_stat_activity as session on session.pid = pg_backend_pid() and session.pid = $7::int
on conflict (id) do update set
  host = excluded.host,
  pid = excluded.pid,
  version = excluded.version,
  roles = excluded.roles,
  started_at = case
    when w.stopped_at is null and (w.host, w.pid) = (excluded.host, excluded.pid) then w.started_at
    else excluded.started_at
  end,
  last_seen_at = excluded.last_seen_at,
  in_flight = excluded.in_flight,
  session_pid = excluded.session_pid,
  session_start = excluded.session_start,
  missing_since = null,
  stopped_at = null,
  died_at = null
returning coalesce((select had_died from before), false) as had_died`,
    values: [worker.id, worker.host, worker.pid, worker.version, worker.roles, inFlight, backendPid ?? null],
  }
}

/** A clean stop: nobody is to miss it. Send it after the last presence, which would take it back. */
export function farewell(schema: string, id: string): Statement {
  return {
    text: `
update ${quoteQualified(schema, 'workers')}
set stopped_at = now(), last_seen_at = now(), in_flight = 0,
  session_pid = null, session_start = null, missing_since = null
where id = $1`,
    values: [id],
  }
}

/** A worker without a visible session is missed after so long: six times the interval in which it is heard of. */
const SILENT_AFTER = '30 seconds'

export function workersStatement(schema: string): Statement {
  return {
    text: `
select id, host, pid, version, roles, started_at as "startedAt", last_seen_at as "lastSeenAt",
  in_flight as "inFlight", stopped_at as "stoppedAt", died_at as "diedAt",
  session_pid is not null as "sessionVisible",
  case
    when stopped_at is not null then 'stopped'
    when died_at is not null then 'dead'
    when missing_since is not null or last_seen_at < now() - interval '${SILENT_AFTER}' then 'missing'
    else 'alive'
  end as state
from ${quoteQualified(schema, 'workers')}
order by started_at, id`,
  }
}

export function reaperAliveStatement(schema: string, withinMs: number): Statement {
  return {
    text: `
select exists (
  select from ${quoteQualified(schema, 'workers')}
  where stopped_at is null and died_at is null and 'reaper' = any (roles)
    and last_seen_at > now() - $1::float8 * interval '1 millisecond'
) as alive`,
    values: [withinMs],
  }
}

/** Ended a day ago; or silent for a day, which is how a worker behind a pooler ends. */
export function forgetStatement(schema: string): Statement {
  const workers = quoteQualified(schema, 'workers')
  return {
    text: `
delete from ${workers}
where id = any (array(
  select id from ${workers}
  where coalesce(stopped_at, died_at, last_seen_at) < now() - interval '1 day'
  limit 1000
  for update skip locked
))`,
  }
}
