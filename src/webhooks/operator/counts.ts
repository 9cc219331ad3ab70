/** How much is in each state, and how long the oldest delivery has waited: asked often, so never by reading the table. */
import { type Count, countRest, countUpTo, sum } from '../../operator/counting.ts'
import { type BrowseOptions, looking } from '../../operator/looking.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { bucketsOf, deliveriesOf } from './tables.ts'

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

/** Each in the words of a partial index. Behind another delivery stands only what is in a line. */
const PARTS = {
  first: "delivery_status = 'pending' and not behind",
  behind: "behind and line is not null and delivery_status = 'pending'",
  inFlight: 'lease_owner is not null',
  failed: "delivery_status = 'failed'",
} as const

/** What looks take too long for. */
export const COUNTING = { what: 'counting the deliveries', remedy: 'Allow more time.' }

export async function countDeliveries(db: Database, options: BrowseOptions = {}): Promise<DeliveryCounts> {
  const table = deliveriesOf(options.schema)
  return looking(db, options, COUNTING, async (tx) => {
    const unfinished = sum([
      await countUpTo(tx, table, PARTS.first),
      await countUpTo(tx, table, PARTS.behind),
    ])
    const inFlight = await countUpTo(tx, table, PARTS.inFlight)
    const failed = await countUpTo(tx, table, PARTS.failed)
    const delivered = await countRest(tx, table, "delivery_status = 'delivered'", [unfinished, failed])
    const count = Math.max(0, unfinished.count - inFlight.count)
    return { pending: { count, exact: unfinished.exact && inFlight.exact }, inFlight, delivered, failed }
  })
}

/** The delivery that could have been attempted for the longest time; undefined when none is due. */
export async function oldestPendingDelivery(
  db: Database,
  options: BrowseOptions = {},
): Promise<OldestPendingDelivery | undefined> {
  const { schema } = options
  const what = 'looking for the oldest pending delivery'
  return looking(db, options, { ...COUNTING, what }, async (tx) => {
    const found: OldestPendingDelivery[] = []
    for (const bucket of await bucketsOf(tx, schema)) found.push(...(await oldestIn(tx, schema, bucket)))
    return found.sort((a, b) => b.waitingMs - a.waitingMs)[0]
  })
}

/**
 * The endpoints that have something pending, jumping from one to the next along the index that claims read: what
 * thousands of deliveries wait for at one of them costs as little as one.
 */
export function pendingEndpointsSql(table: string): string {
  const next = (after: string): string => `select d.endpoint_id from ${table} as d
  where d.bucket = $1::smallint and ${PARTS.first}${after} order by d.endpoint_id limit 1`
  return `waiting as (
  (${next('')})
  union all
  select (${next(' and d.endpoint_id > waiting.endpoint_id')})
  from waiting where waiting.endpoint_id is not null
)`
}

async function oldestIn(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
): Promise<OldestPendingDelivery[]> {
  const table = deliveriesOf(schema)
  const { rows } = await tx.query<OldestPendingDelivery>({
    text: `with recursive ${pendingEndpointsSql(table)}
select oldest.* from waiting cross join lateral (
  select d.id::text as id, event_type as type, endpoint_id as "endpointId", next_attempt_at as "nextAttemptAt",
    (extract(epoch from now() - next_attempt_at) * 1000)::float8 as "waitingMs"
  from ${table} as d
  where d.bucket = $1::smallint and d.endpoint_id = waiting.endpoint_id and ${PARTS.first}
    and lease_owner is null and next_attempt_at <= now()
  order by next_attempt_at, d.id limit 1
) as oldest
order by oldest."nextAttemptAt" limit 1`,
    values: [bucket],
  })
  return rows
}
