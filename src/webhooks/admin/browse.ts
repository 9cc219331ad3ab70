/** Which deliveries there are, for those who operate them: one page at a time, newest first. */
import { type BrowseOptions, looking } from '../../admin/looking.ts'
import { checkPage, invalid, isRowId } from '../../admin/request-checks.ts'
import { values } from '../../admin/statement-values.ts'
import type { Database } from '../../postgres/database.ts'
import type { DeliveryStatus } from '../transitions.ts'
import { checkFilter, type DeliveryFilter, filterSql, statusesOf } from './filter.ts'
import { bucketsOf, deliveriesOf, endpointsOf } from './tables.ts'

/** A delivery without its body, as lists show it. */
export interface DeliverySummary {
  readonly id: string
  /** The webhook-id, by which receivers recognise the event. */
  readonly eventId: string
  readonly endpointId: string
  /** Null: the endpoint has been deleted. */
  readonly endpointUrl: string | null
  readonly tenant: string | null
  readonly type: string
  readonly orderingKey: string | null
  readonly status: DeliveryStatus
  /** How many attempts have failed; an expired lease counts as one. */
  readonly attempts: number
  /** How many leases have expired. */
  readonly expiries: number
  readonly createdAt: Date
  readonly nextAttemptAt: Date
  /** The dispatcher that delivers it at this moment. */
  readonly leaseOwner: string | null
  readonly leaseUntil: Date | null
  readonly token: bigint
  readonly deliveredAt: Date | null
  readonly failedAt: Date | null
  readonly lastAttemptAt: Date | null
  readonly lastDurationMs: number | null
  readonly lastStatus: number | null
  readonly lastErrorCode: string | null
  readonly lastError: string | null
}

export interface DeliveryPageOptions extends BrowseOptions {
  /** Default 50, at most 1,000. */
  readonly limit?: number | undefined
  /** Only deliveries with smaller ids: where the page before ended. */
  readonly before?: string | undefined
}

export interface DeliveryPage {
  /** Newest first. */
  readonly deliveries: readonly DeliverySummary[]
  /** What `before` is for the next page; null when this was the last. */
  readonly next: string | null
}

/** One page of deliveries, newest first: by their number, which is nearly the order in which they were sent. */
export async function listDeliveries(
  db: Database,
  filter: DeliveryFilter = {},
  options: DeliveryPageOptions = {},
): Promise<DeliveryPage> {
  const { limit = 50, before, schema } = options
  checkFilter(filter)
  checkPage(limit)
  if (before !== undefined && !isRowId(before)) {
    throw invalid('before', before, 'Give the number of a delivery: `next` of the page before.')
  }
  return looking(db, options, { what: 'listing the deliveries', remedy: TOO_MANY }, async (tx) => {
    const found: DeliverySummary[] = []
    for (const bucket of await bucketsOf(tx, schema)) {
      const value = values()
      const conditions = [
        `bucket = ${value(bucket, 'smallint')}`,
        ...(before === undefined ? [] : [`d.id < ${value(before, 'bigint')}`]),
        filterSql(filter, statusesOf(filter), value, schema),
      ]
      // The page first, then its endpoints: a join before the limit would be planned as one of the whole table.
      // One more than the page has: whether there is another.
      const { rows } = await tx.query<SummaryRow>({
        text: `with page as materialized (
  select * from ${deliveriesOf(schema)} as d where ${conditions.join(' and ')}
  order by d.id desc limit ${value(limit + 1, 'int')}
)
select ${SUMMARY} from page as d left join ${endpointsOf(schema)} as e on e.id = d.endpoint_id order by d.id desc`,
        values: value.all,
      })
      found.push(...rows.map(summary))
    }
    // Each bucket brought its newest, so the newest of all are among them.
    const newest = found.sort((a, b) => (BigInt(a.id) > BigInt(b.id) ? -1 : 1))
    const deliveries = newest.slice(0, limit)
    return { deliveries, next: newest.length > limit ? (deliveries.at(-1)?.id ?? null) : null }
  })
}

const TOO_MANY =
  'Choose fewer: by status failed and failedSince, by ids, or with `before` a page further down; or allow more time.'

export type SummaryRow = Omit<DeliverySummary, 'token'> & { readonly token: string }

/** Of a delivery d and its endpoint e. */
export const SUMMARY = `d.id::text as id, d.event_id as "eventId", d.endpoint_id as "endpointId", e.url as "endpointUrl",
  e.tenant, d.event_type as type, d.ordering_key as "orderingKey", d.delivery_status as status, d.attempts, d.expiries,
  d.created_at as "createdAt", d.next_attempt_at as "nextAttemptAt", d.lease_owner as "leaseOwner",
  d.lease_until as "leaseUntil", d.lease_token::text as token, d.delivered_at as "deliveredAt",
  d.failed_at as "failedAt", d.last_attempt_at as "lastAttemptAt", d.last_duration_ms as "lastDurationMs",
  d.last_status as "lastStatus", d.last_error_code as "lastErrorCode", d.last_error as "lastError"`

export function summary(row: SummaryRow): DeliverySummary {
  return { ...row, token: BigInt(row.token) }
}
