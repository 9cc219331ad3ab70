/** Events in every state, as the state machine lets them come about. */
import type { Database } from '../../src/postgres/database.ts'

export interface MadeEvents {
  readonly status?: 'PENDING' | 'CLAIMED' | 'PUBLISHED' | 'DEAD'
  readonly type?: string
  /** SQL of the key, in which `n` counts the events from 1. Default: no key. */
  readonly key?: string
  readonly error?: string
  readonly attempts?: number
  readonly parked?: boolean
  /** How long ago they were written, and published. */
  readonly agoMs?: number
}

/** Writes so many events and brings them to their state; returns their ids, in order. */
export async function makeEvents(db: Database, count: number, made: MadeEvents = {}): Promise<string[]> {
  const {
    status = 'PENDING',
    type = 'order.paid',
    key = 'null',
    attempts = 0,
    parked = false,
    agoMs = 0,
  } = made
  const moment = `now() - ${agoMs} * interval '1 millisecond'`
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.outbox (event_type, ordering_key, payload, created_at, attempts)
select $1, ${key}, jsonb_build_object('n', n), ${moment}, $3 from generate_series(1, $2::int) as n order by n
returning id::text as id`,
    values: [type, count, attempts],
  })
  const ids = rows.map(({ id }) => id)
  if (status === 'PENDING') return ids
  // All of them at once, whatever their keys: a key may have one in flight only, so the key comes back afterwards.
  await db.transaction(async (tx) => {
    const values = [ids]
    await tx.query({
      text: `create temp table kept on commit drop as
select id, ordering_key from leasehold.outbox where bucket = 0 and id = any ($1::bigint[])`,
      values,
    })
    await tx.query({
      text: `update leasehold.outbox set status = 'CLAIMED', available_at = null, claimed_at = now(), claimed_by = 'test',
  locked_until = now() + interval '1 hour', lock_token = lock_token + 1, ordering_key = null
where bucket = 0 and id = any ($1::bigint[])`,
      values,
    })
    // As a relay does that claims them.
    await tx.query({
      text: 'delete from leasehold.outbox_bundles where rows[1] = any ($1::bigint[])',
      values,
    })
    if (status !== 'CLAIMED') {
      const free = 'claimed_at = null, claimed_by = null, locked_until = null'
      const end =
        status === 'DEAD'
          ? `status = 'DEAD', last_error = $2::text, parked = ${parked}`
          : `status = 'PUBLISHED', published_at = ${moment}, last_error = $2::text`
      await tx.query({
        text: `update leasehold.outbox set ${free}, ${end} where bucket = 0 and id = any ($1::bigint[])`,
        values: [ids, made.error ?? null],
      })
    }
    await tx.query({
      text: `update leasehold.outbox as o set ordering_key = kept.ordering_key from kept
where o.bucket = 0 and o.id = kept.id and kept.ordering_key is not null`,
    })
  })
  return ids
}

/** What a replay changes, and what it must not. */
export interface OutboxState {
  readonly id: string
  readonly status: string
  readonly attempts: number
  readonly last_error: string | null
  readonly published_at: Date | null
  readonly parked: boolean
  readonly behind: boolean
  readonly lock_token: string
  /** `available_at` in seconds since 1970, to the microsecond. */
  readonly due: number | null
  readonly created: string
}

export async function outboxStates(db: Database): Promise<OutboxState[]> {
  const { rows } = await db.query<OutboxState>({
    text: `select id::text as id, status, attempts, last_error, published_at, parked, behind, lock_token,
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
