/** A worker id that is configured belongs to one living process at a time (RULE-020-032). */
import { setTimeout as pause } from 'node:timers/promises'
import { LeaseholdError } from '../../errors.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { Events } from '../events.ts'
import { RECONNECT_MS } from '../reaper/dead-workers.ts'
import { MISSING_AFTER, type WorkerInfo } from './registry.ts'

const CHECK_MS = 250

/** How long a process whose session has ended may take to return, which is also the grace of the reaper. */
const GRACE_MS = 2_000

interface Holder {
  readonly host: string
  readonly pid: number
  readonly lastSeenAt: Date
  /** Changes with every sign of life. Text, because a Date is less precise. */
  readonly sign: string
  /**
   * It stopped, was declared dead, or was not heard of for so long that it counts as missing. Or it was last heard of when
   * the clock of the database was ahead: one that lives says so again within seconds.
   */
  readonly isOver: boolean
  /** Its session was visible, and has ended. */
  readonly isSessionGone: boolean
  /** The server was restarted, which ends the sessions of the living as well. */
  readonly isServerRestarted: boolean
}

const SIGN = 'extract(epoch from w.last_seen_at)::text'

/**
 * Registers this process under its id, before anything is taken back that the id holds. While the registry has a process
 * of this id that may be alive, this waits: until that gives a sign of life, and the start is refused; or until it is dead.
 * With a visible session that takes a few seconds, and at most 30 s with one that a pooler hides.
 */
export async function takeWorkerId(
  db: Queryable,
  schema: string,
  worker: WorkerInfo,
  events: Events,
): Promise<void> {
  let first: Holder | undefined
  let goneSince: number | undefined
  for (;;) {
    const holder = await findHolder(db, schema, worker.id)
    if (holder !== undefined && !holder.isOver) {
      if (first === undefined) {
        const { host, pid, lastSeenAt } = holder
        events.emit('waitingForWorkerId', { worker: worker.id, host, pid, lastSeenAt })
      }
      first ??= holder
      if (holder.sign !== first.sign) throw idTaken(worker.id, holder)
    }
    goneSince = holder?.isSessionGone === true ? (goneSince ?? performance.now()) : undefined
    const graceMs = holder?.isServerRestarted === true ? RECONNECT_MS : GRACE_MS
    const isGone = goneSince !== undefined && performance.now() - goneSince >= graceMs
    const isFree = holder === undefined || holder.isOver || isGone
    // Of processes that start at the same time, one finds the sign that it has read.
    if (isFree && (await register(db, schema, worker, holder?.sign))) return
    if (!isFree) await pause(CHECK_MS)
  }
}

async function findHolder(db: Queryable, schema: string, id: string): Promise<Holder | undefined> {
  const { rows } = await db.query<Holder>({
    text: `
select w.host, w.pid, w.last_seen_at as "lastSeenAt", ${SIGN} as sign,
  w.stopped_at is not null or w.died_at is not null
    or w.last_seen_at not between now() - interval '${MISSING_AFTER}' and now() + interval '${MISSING_AFTER}' as "isOver",
  w.session_pid is not null and not exists (
    select from pg_stat_activity as s
    where s.pid = w.session_pid
      -- Hidden from a role that may not see the sessions of others: then the pid has to do.
      and (s.backend_start = w.session_start or s.backend_start is null or w.session_start is null)
  ) as "isSessionGone",
  coalesce(w.session_start < pg_postmaster_start_time(), false) as "isServerRestarted"
from ${quoteQualified(schema, 'workers')} as w
where w.id = $1`,
    values: [id],
  })
  return rows[0]
}

/** False: another process has registered under this id meanwhile, or given a sign of life. */
async function register(
  db: Queryable,
  schema: string,
  { id, host, pid, version, roles }: WorkerInfo,
  sign: string | undefined,
): Promise<boolean> {
  const { rowCount } = await db.query({
    text: `
insert into ${quoteQualified(schema, 'workers')} as w (id, host, pid, version, roles)
values ($1, $2, $3::int, $4, $5::text[])
on conflict (id) do update set
  host = excluded.host, pid = excluded.pid, version = excluded.version, roles = excluded.roles, reaps = '{}',
  started_at = now(), last_seen_at = now(), in_flight = 0, session_pid = null, session_start = null,
  missing_since = null, stopped_at = null, died_at = null
where ${SIGN} = $6`,
    values: [id, host, pid, version, roles, sign ?? null],
  })
  return rowCount === 1
}

function idTaken(id: string, { host, pid, lastSeenAt }: Holder): LeaseholdError {
  return new LeaseholdError(
    'WORKER_ID_TAKEN',
    `The worker id "${id}" is that of a process that is alive: process ${pid} on ${host}, last heard of at ${lastSeenAt.toISOString()}.`,
    {
      remedy: 'Give every process an id of its own, or none at all. To replace that process, stop it first.',
    },
  )
}
