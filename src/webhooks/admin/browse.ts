/** What operators read of deliveries: pages of them, and one delivery with its body, its attempts and what it waits for. */
import {
  type Among,
  type BrowseOptions,
  listNewestFirst,
  type PageOptions,
  readAllPages,
  readOnly,
} from '../../operations/browse.ts'
import { isEmptyFilter } from '../../operations/bulk-change.ts'
import { readClock } from '../../operations/bulk-change-sql.ts'
import type { NamedRow } from '../../operations/named-rows.ts'
import { LeaseholdError } from '../../errors.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import { positionalParameters } from '../../postgres/parameters.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { stringifiable } from '../../stringifiable.ts'
import type { DeliveryStatus } from '../transitions.ts'
import {
  attemptsOf,
  checkFilter,
  checkId,
  deliveriesOf,
  type DeliveryFilter,
  endpointsOf,
  filterSql,
  narrowSql,
  statusesOf,
} from './filter.ts'

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

export interface DeliveryPage {
  /** Newest first. */
  readonly deliveries: readonly DeliverySummary[]
  /** What `before` is for the next page; null when this was the last. */
  readonly next: string | null
}

/** One page of deliveries, newest first. */
export async function listDeliveries(
  db: Database,
  filter: DeliveryFilter = {},
  options: PageOptions = {},
): Promise<DeliveryPage> {
  checkFilter(filter)
  const { schema } = options
  const { rows, next } = await listNewestFirst<SummaryRow>(db, options, {
    table: deliveriesOf(schema),
    bucketed: true,
    row: 'a delivery',
    // Of the states, only failed ones have an index in the order of their ids.
    isIndexed:
      filter.ids !== undefined ||
      isEmptyFilter(filter) ||
      statusesOf(filter).every((status) => status === 'failed'),
    among: async (tx) => amongEndpoints(tx, filter, schema),
    where: (parameter, _tx, _bucket, among) => [
      filterSql(
        among === undefined ? filter : withoutEndpoints(filter),
        statusesOf(filter),
        parameter,
        schema,
      ),
    ],
    columns: SUMMARY,
    joins: `left join ${endpointsOf(schema)} as e on e.id = r.endpoint_id`,
    what: 'Listing the deliveries',
    remedy:
      'Choose fewer deliveries: by status failed and failedSince, by ids, or with `before` a later page; or allow more time.',
  })
  return { deliveries: rows.map(summary), next }
}

/** So many endpoints are looked up in each bucket, in about 10 µs each. */
const MAX_ENDPOINTS_MERGED = 1_000

/** The endpoints that a filter names, by one of them or by their tenant, where they are few enough to be read one by one. */
async function amongEndpoints(
  tx: Queryable,
  filter: DeliveryFilter,
  schema: string | undefined,
): Promise<Among | undefined> {
  const { endpoint, tenant, ids } = filter
  if (ids !== undefined || (endpoint === undefined && tenant === undefined)) return undefined
  const values =
    tenant === undefined && endpoint !== undefined
      ? [endpoint]
      : await endpointsOfTenant(tx, { tenant, endpoint }, schema)
  if (values.length > MAX_ENDPOINTS_MERGED) return undefined
  const others = withoutEndpoints(filter)
  const onlyFailed = statusesOf(filter).every((status) => status === 'failed')
  const isIndexed = isEmptyFilter(onlyFailed ? { ...others, status: undefined } : others)
  return { column: 'endpoint_id', type: 'uuid', values, isIndexed }
}

function withoutEndpoints(filter: DeliveryFilter): DeliveryFilter {
  return { ...filter, endpoint: undefined, tenant: undefined }
}

async function endpointsOfTenant(
  tx: Queryable,
  { tenant, endpoint }: Pick<DeliveryFilter, 'tenant' | 'endpoint'>,
  schema: string | undefined,
): Promise<string[]> {
  const { rows } = await tx.query<{ id: string }>({
    text: `select id from ${endpointsOf(schema)}
where tenant = $1::text and ($2::uuid is null or id = $2::uuid) limit ${MAX_ENDPOINTS_MERGED + 1}`,
    values: [tenant, endpoint],
  })
  return rows.map(({ id }) => id)
}

/** The deliveries that an operator names, and why each is not changed. An event may have any number of them. */
export async function findNamed(
  db: Database,
  schema: string,
  ids: readonly string[],
  whyNot: (delivery: DeliverySummary, now: Date) => string | undefined,
): Promise<NamedRow[]> {
  const now = new Date((await readClock(db)) * 1_000)
  const deliveries = await readAllPages(async (page) => {
    const { deliveries: rows, next } = await listDeliveries(db, { ids }, { schema, ...page })
    return { rows, next }
  })
  return deliveries.map((delivery) => ({
    id: delivery.id,
    eventId: delivery.eventId,
    whyNot: whyNot(delivery, now),
  }))
}

/** Why a delivery that a dispatcher delivers now is left alone. Undefined: none does. */
export function whyInFlight({ leaseOwner, leaseUntil }: DeliverySummary, now: Date): string | undefined {
  if (leaseUntil === null || leaseUntil <= now) return undefined
  return `it is in flight: ${leaseOwner ?? 'a dispatcher'} delivers it at this moment`
}

type SummaryRow = Omit<DeliverySummary, 'token'> & { readonly token: string }

/** Of a delivery r and its endpoint e. */
const SUMMARY = `r.id::text as id, r.event_id as "eventId", r.endpoint_id as "endpointId", e.url as "endpointUrl",
  e.tenant, r.event_type as type, r.ordering_key as "orderingKey", r.delivery_status as status, r.attempts, r.expiries,
  r.created_at as "createdAt", r.next_attempt_at as "nextAttemptAt", r.lease_owner as "leaseOwner",
  r.lease_until as "leaseUntil", r.lease_token::text as token, r.delivered_at as "deliveredAt",
  r.failed_at as "failedAt", r.last_attempt_at as "lastAttemptAt", r.last_duration_ms as "lastDurationMs",
  r.last_status as "lastStatus", r.last_error_code as "lastErrorCode", r.last_error as "lastError"`

function summary(row: SummaryRow): DeliverySummary {
  return stringifiable({ ...row, token: BigInt(row.token) })
}

export interface DeliveryAttempt {
  /** 1 for the first since the delivery was sent, or replayed. */
  readonly attempt: number
  readonly token: bigint
  /** Null: its dispatcher died, and nobody knows. */
  readonly startedAt: Date | null
  readonly durationMs: number | null
  readonly status: number | null
  /** Null: it succeeded. */
  readonly errorCode: string | null
  readonly error: string | null
  /** The beginning of the answer. */
  readonly response: string | null
  readonly recordedAt: Date
}

export interface DeliveryDetails extends DeliverySummary {
  /** Byte for byte as it is signed and sent. */
  readonly body: string
  readonly headers: Readonly<Record<string, string>>
  /** Newest last; of more than 100, the newest 100. */
  readonly history: readonly DeliveryAttempt[]
  /** The delivery of its ordering key that has to be finished first. */
  readonly waitsFor: DeliveryWaitedFor | null
}

export type DeliveryWaitedFor = Pick<DeliverySummary, 'id' | 'attempts' | 'lastError'> & {
  readonly inFlight: boolean
}

const MAX_ATTEMPTS_SHOWN = 100

/** By its number; an event id will do where the event went to one endpoint only. */
export async function showDelivery(
  db: Database,
  id: string,
  options: BrowseOptions = {},
): Promise<DeliveryDetails> {
  checkId(id)
  const { schema } = options
  return readOnly(db, options, { what: 'Finding the delivery', remedy: 'Allow more time.' }, async (tx) => {
    const { bucket, body, headers, ...rest } = await findDelivery(tx, schema, id)
    return stringifiable({
      ...summary(rest),
      body,
      headers,
      history: await attemptsAt(tx, schema, bucket, rest.id),
      waitsFor: rest.status === 'pending' ? await waitedFor(tx, schema, bucket, rest) : null,
    })
  })
}

type Found = SummaryRow & Pick<DeliveryDetails, 'body' | 'headers'>

/** Finds the one delivery with this number, or of this event, in all buckets; fails if there is none, or more than one. */
export async function findDelivery(
  tx: Queryable,
  schema: string | undefined,
  id: string,
): Promise<Found & { readonly bucket: number }> {
  const found: (Found & { readonly bucket: number })[] = []
  for (const bucket of await ownBuckets(tx, schema)) {
    found.push(...(await findIn(tx, schema, bucket, id)).map((row) => ({ ...row, bucket })))
  }
  const [row, another] = found
  if (row === undefined) throw notFound(id)
  if (another !== undefined) throw several(id, found)
  return row
}

async function findIn(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  id: string,
): Promise<Found[]> {
  const parameter = positionalParameters()
  const { rows } = await tx.query<Found>({
    text: `with found as materialized (
  select * from ${deliveriesOf(schema)}
  where bucket = ${parameter(bucket, 'smallint')} and ${narrowSql({ ids: [id] }, statusesOf({}), parameter)}
)
select ${SUMMARY}, r.body, r.headers
from found as r left join ${endpointsOf(schema)} as e on e.id = r.endpoint_id
order by r.id`,
    values: parameter.values,
  })
  return rows
}

async function attemptsAt(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  delivery: string,
): Promise<DeliveryAttempt[]> {
  const { rows } = await tx.query<Omit<DeliveryAttempt, 'token'> & { readonly token: string }>({
    text: `select attempt, lease_token::text as token, started_at as "startedAt", duration_ms as "durationMs", status,
  error_code as "errorCode", error, response, recorded_at as "recordedAt"
from ${attemptsOf(schema)}
where bucket = $1::smallint and delivery_id = $2::bigint
order by id desc limit ${MAX_ATTEMPTS_SHOWN}`,
    values: [bucket, delivery],
  })
  return rows.map((row) => stringifiable({ ...row, token: BigInt(row.token) })).toReversed()
}

/** What claims wait for: the delivery of its key that is in flight, else the head. Each is one probe of an index. */
async function waitedFor(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  { id, endpointId, orderingKey }: Pick<SummaryRow, 'id' | 'endpointId' | 'orderingKey'>,
): Promise<DeliveryWaitedFor | null> {
  if (orderingKey === null) return null
  const ofKey = `select d.id, attempts, last_error, lease_owner is not null as in_flight from ${deliveriesOf(schema)} as d
  where bucket = $1::smallint and endpoint_id = $2::uuid and ordering_key = $3::text`
  const { rows } = await tx.query<DeliveryWaitedFor>({
    text: `select d.id::text as id, attempts, last_error as "lastError", in_flight as "inFlight"
from (
  (${ofKey} and lease_owner is not null)
  union all
  (${ofKey} and delivery_status = 'pending' order by d.id limit 1)
) as d
order by in_flight desc, d.id limit 1`,
    values: [bucket, endpointId, orderingKey],
  })
  const [first] = rows
  return first === undefined || first.id === id ? null : first
}

function notFound(id: string): LeaseholdError {
  return new LeaseholdError('DELIVERY_NOT_FOUND', `No delivery has the id ${id}.`, {
    remedy: '`leasehold webhooks list` shows what is there; retention may have removed it.',
  })
}

function several(id: string, found: readonly Found[]): LeaseholdError {
  const numbers = found.map((row) => row.id).join(', ')
  return new LeaseholdError(
    'REQUEST_INVALID',
    `id is ${JSON.stringify(id)}, an event that was sent to ${found.length} endpoints.`,
    { remedy: `Give the number of one of its deliveries: ${numbers}.`, field: 'id' },
  )
}
