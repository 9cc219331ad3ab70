import type { Database } from '../../src/postgres/database.ts'

export interface MadeDeliveries {
  readonly status?: 'pending' | 'delivered' | 'failed'
  readonly type?: string
  /** The ordering key as SQL, in which `n` is the number of the delivery, from 1. */
  readonly key?: string
  readonly attempts?: number
  readonly code?: string
  readonly error?: string
  /** How long ago they were created, due and finished. */
  readonly agoMs?: number
  /** The owner of their leases, which last an hour. */
  readonly owner?: string
  readonly expiries?: number
}

/** Inserts deliveries and brings them into a state through valid transitions. Returns their ids in order. */
export async function makeDeliveries(
  db: Database,
  endpoint: string,
  count: number,
  made: MadeDeliveries = {},
): Promise<string[]> {
  const { status = 'pending', type = 'order.paid', key = 'null', agoMs = 0 } = made
  const moment = `now() - ${agoMs} * interval '1 millisecond'`
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.webhook_outbox
  (endpoint_id, event_type, ordering_key, body, created_at, next_attempt_at, attempts, expiries)
select $1, $2, ${key}, '{"n":' || n || '}', ${moment}, ${moment}, $4, $5
from generate_series(1, $3::int) as n order by n
returning id::text as id`,
    values: [endpoint, type, count, made.attempts ?? 0, made.expiries ?? 0],
  })
  const ids = rows.map(({ id }) => id)
  const held = made.owner !== undefined
  if (status === 'pending' && !held) return ids
  const end = {
    pending: "lease_owner = $2, lease_until = now() + interval '1 hour'",
    delivered: `delivery_status = 'delivered', delivered_at = ${moment}, last_status = 200`,
    failed: `delivery_status = 'failed', failed_at = ${moment}`,
  }[status]
  const owner = status === 'pending' ? [made.owner ?? null] : []
  const error = status === 'pending' ? '' : ', last_error_code = $2, last_error = $3'
  await db.query({
    text: `update leasehold.webhook_outbox set lease_token = lease_token + 1, ${end}${error}
where bucket = 0 and id = any ($1::bigint[])`,
    values: [ids, ...(status === 'pending' ? owner : [made.code ?? null, made.error ?? null])],
  })
  return ids
}

/** The columns that operators change, and those that they must not change. */
export interface DeliveryState {
  readonly id: string
  readonly event_id: string
  readonly delivery_status: string
  readonly attempts: number
  readonly expiries: number
  readonly lease_owner: string | null
  readonly lease_token: string
  readonly delivered_at: Date | null
  readonly failed_at: Date | null
  readonly last_error_code: string | null
  readonly last_error: string | null
  /** `next_attempt_at` in seconds since 1970, to the microsecond. */
  readonly due: number
  readonly created: string
}

export async function deliveryStates(db: Database): Promise<DeliveryState[]> {
  const { rows } = await db.query<DeliveryState>({
    text: `select id::text as id, event_id, delivery_status, attempts, expiries, lease_owner, lease_token::text, delivered_at,
  failed_at, last_error_code, last_error, extract(epoch from next_attempt_at)::float8 as due, created_at::text as created
from leasehold.webhook_outbox as d order by d.id`,
  })
  return rows
}

/** The deliveries in this state, in order. */
export async function idsIn(db: Database, status: string): Promise<string[]> {
  return (await deliveryStates(db)).filter((row) => row.delivery_status === status).map(({ id }) => id)
}
