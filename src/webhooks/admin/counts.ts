/** How many deliveries are in each state, and how long the oldest has waited. Asked often, so never by a scan of the table. */
import { type BrowseOptions, readOnly } from '../../operations/browse.ts'
import { type Count, countRemaining, countUpTo, sumCounts } from '../../operations/count.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { deliveriesOf } from './filter.ts'

export interface DeliveryCounts {
  /** Waiting for an attempt, those in flight not among them. */
  readonly pending: Count
  readonly inFlight: Count
  readonly delivered: Count
  readonly failed: Count
}

export interface OldestPendingDelivery {
  readonly id: string
  readonly type: string
  readonly endpointId: string
  readonly nextAttemptAt: Date
  /** How long it could have been attempted already, by the clock of the database. */
  readonly waitingMs: number
}

/** The pending deliveries, each part in the words of the partial index that holds it; a delivery is in one of them. */
export const PENDING = {
  unkeyed: "delivery_status = 'pending' and ordering_key is null and expiries < 2",
  suspects: "delivery_status = 'pending' and ordering_key is null and expiries >= 2",
  keyed: "delivery_status = 'pending' and ordering_key is not null",
} as const

/** In the order of its index: without statistics PostgreSQL takes most rows for leased, and would scan the table. */
const IN_FLIGHT = 'lease_owner is not null order by bucket, endpoint_id, ordering_key'

/** The most ordering keys whose heads one statement reads: about 0.2 s. */
const MAX_KEYS = 10_000

/** The name of the query, and the advice when it takes too long. */
export const COUNTING = { what: 'Counting the deliveries', remedy: 'Allow more time.' }

/** How many deliveries there are, by status, and how many are in flight. */
export async function countDeliveries(db: Database, options: BrowseOptions = {}): Promise<DeliveryCounts> {
  const table = deliveriesOf(options.schema)
  return readOnly(db, options, COUNTING, async (tx) => {
    const parts: Count[] = []
    for (const part of Object.values(PENDING)) parts.push(await countUpTo(tx, table, part))
    const unfinished = sumCounts(parts)
    const inFlight = await countUpTo(tx, table, IN_FLIGHT)
    const failed = await countUpTo(tx, table, "delivery_status = 'failed'")
    const delivered = await countRemaining(tx, table, "delivery_status = 'delivered'", [unfinished, failed])
    const count = Math.max(0, unfinished.count - inFlight.count)
    return { pending: { count, exact: unfinished.exact && inFlight.exact }, inFlight, delivered, failed }
  })
}

/**
 * The delivery that could have been attempted for the longest time; undefined when none is due. Where deliveries have
 * ordering keys, it is found among the heads of the first 10,000 keys.
 */
export async function oldestPendingDelivery(
  db: Database,
  options: BrowseOptions = {},
): Promise<OldestPendingDelivery | undefined> {
  const { schema } = options
  const what = 'Finding the oldest pending delivery'
  return readOnly(db, options, { ...COUNTING, what }, async (tx) => {
    const found: OldestPendingDelivery[] = []
    for (const bucket of await ownBuckets(tx, schema)) found.push(...(await oldestIn(tx, schema, bucket)))
    return found.sort((a, b) => b.waitingMs - a.waitingMs)[0]
  })
}

/**
 * The CTE `waiting`: the endpoints that have something pending in these parts, from one to the next along the indexes, so
 * that an endpoint with thousands of deliveries costs as little as one with a single delivery. The last row is null.
 */
export function pendingEndpointsSql(table: string, parts: readonly (keyof typeof PENDING)[]): string {
  const next = (after: string): string => {
    const probes = parts.map(
      (part) => `(
    select d.endpoint_id from ${table} as d
    where d.bucket = $1::smallint and ${PENDING[part]}${after} order by d.endpoint_id limit 1
  )`,
    )
    return `least(${probes.join(', ')})`
  }
  return `waiting (endpoint_id) as (
  select ${next('')}
  union all
  select ${next(' and d.endpoint_id > waiting.endpoint_id')}
  from waiting where waiting.endpoint_id is not null
)`
}

/**
 * The CTE `head`: the first pending delivery of each ordering key after the given endpoint and key, found by walking from
 * key to key as claims do. At most `steps` of them.
 */
export function headsSql(table: string, after: string, steps: string): string {
  const next = (
    from: string,
  ): string => `select d.endpoint_id, d.ordering_key, d.id, d.next_attempt_at, d.lease_owner, d.lease_until
    from ${table} as d
    where d.bucket = $1::smallint and ${PENDING.keyed} and (d.endpoint_id, d.ordering_key) > (${from})
    order by d.endpoint_id, d.ordering_key, d.id limit 1`
  return `head as (
  select first.*, 1 as step from (
    ${next(after)}
  ) as first
  union all
  select next.*, head.step + 1
  from head
  cross join lateral (
    ${next('head.endpoint_id, head.ordering_key')}
  ) as next
  where head.step < ${steps}
)`
}

/** Before the first endpoint and key. */
export const BEFORE_FIRST_KEY = {
  endpointId: '00000000-0000-0000-0000-000000000000',
  orderingKey: '',
} as const

async function oldestIn(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
): Promise<OldestPendingDelivery[]> {
  const table = deliveriesOf(schema)
  const oldestOf = (part: keyof typeof PENDING): string => `select oldest.* from waiting cross join lateral (
    select d.id, d.next_attempt_at from ${table} as d
    where d.bucket = $1::smallint and d.endpoint_id = waiting.endpoint_id and ${PENDING[part]}
      and lease_owner is null and next_attempt_at <= now()
    order by next_attempt_at, d.id limit 1
  ) as oldest`
  const { rows } = await tx.query<OldestPendingDelivery>({
    text: `with recursive ${pendingEndpointsSql(table, ['unkeyed', 'suspects'])},
${headsSql(table, '$2::uuid, $3::text', '$4::int')},
due as (
  ${oldestOf('unkeyed')}
  union all
  ${oldestOf('suspects')}
  union all
  select id, next_attempt_at from head where lease_owner is null and next_attempt_at <= now()
)
select d.id::text as id, event_type as type, endpoint_id as "endpointId", next_attempt_at as "nextAttemptAt",
  (extract(epoch from now() - next_attempt_at) * 1000)::float8 as "waitingMs"
from ${table} as d
where bucket = $1::smallint and id = (select id from due order by next_attempt_at, id limit 1)`,
    values: [bucket, BEFORE_FIRST_KEY.endpointId, BEFORE_FIRST_KEY.orderingKey, MAX_KEYS],
  })
  return rows
}
