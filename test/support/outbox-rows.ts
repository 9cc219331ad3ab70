import type { Database } from '../../src/postgres/database.ts'

export interface MadeEvents {
  readonly status?: 'PENDING' | 'CLAIMED' | 'PUBLISHED' | 'DEAD'
  readonly type?: string
  /** The ordering key as SQL, in which `n` is the number of the event, from 1. Default: no key. */
  readonly key?: string
  readonly error?: string
  readonly attempts?: number
  readonly expiries?: number
  readonly parked?: boolean
  /** How long ago they were written. */
  readonly agoMs?: number
  /** How long ago they were published, or became dead. Default: when they were written. */
  readonly finishedAgoMs?: number
}

/** Inserts events directly in a given state, as restoring a dump does. Returns their ids in order. */
export async function makeEvents(db: Database, count: number, made: MadeEvents = {}): Promise<string[]> {
  const { status = 'PENDING', type = 'order.paid', key = 'null', agoMs = 0 } = made
  const ago = (ms: number): string => `now() - ${ms} * interval '1 millisecond'`
  const finished = ago(made.finishedAgoMs ?? agoMs)
  const columns = {
    event_type: '$1',
    ordering_key: key,
    payload: `jsonb_build_object('n', n)`,
    created_at: ago(agoMs),
    status: '$3',
    attempts: '$4::int',
    expiries: '$5::int',
    last_error: '$6::text',
    parked: '$7::boolean',
    lock_token: status === 'PENDING' ? '0' : '1',
    claimed_at: status === 'CLAIMED' ? 'now()' : 'null',
    claimed_by: status === 'CLAIMED' ? "'test'" : 'null',
    locked_until: status === 'CLAIMED' ? "now() + interval '1 hour'" : 'null',
    published_at: status === 'PUBLISHED' ? finished : 'null',
    dead_at: status === 'DEAD' ? finished : 'null',
  }
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.outbox (${Object.keys(columns).join(', ')})
select ${Object.values(columns).join(', ')} from generate_series(1, $2::int) as n order by n
returning id::text as id`,
    values: [
      type,
      count,
      status,
      made.attempts ?? 0,
      made.expiries ?? 0,
      made.error ?? null,
      made.parked ?? false,
    ],
  })
  return rows.map(({ id }) => id)
}

/** The columns that a replay changes, and those that it must not change. */
export interface OutboxState {
  readonly id: string
  readonly status: string
  readonly attempts: number
  readonly expiries: number
  readonly last_error: string | null
  readonly published_at: Date | null
  readonly dead_at: Date | null
  readonly parked: boolean
  readonly lock_token: string
  /** `available_at` in seconds since 1970, to the microsecond. */
  readonly due: number | null
  readonly created: string
}

export async function outboxStates(db: Database): Promise<OutboxState[]> {
  const { rows } = await db.query<OutboxState>({
    text: `select id::text as id, status, attempts, expiries, last_error, published_at, dead_at,
  parked, lock_token,
  extract(epoch from available_at)::float8 as due, created_at::text as created
from leasehold.outbox as o order by o.id`,
  })
  return rows
}

export interface AuditEntry {
  readonly principal: string
  readonly action: string
  readonly target: string | null
  readonly details: Readonly<Record<string, unknown>>
}

export async function auditEntries(db: Database): Promise<AuditEntry[]> {
  const text = 'select principal, action, target, details from leasehold.audit order by id'
  return (await db.query<AuditEntry>({ text })).rows
}
