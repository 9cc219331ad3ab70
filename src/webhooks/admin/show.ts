/** One delivery with all there is to know: its body, each attempt at it, and what it waits for. */
import { LeaseholdError } from '../../errors.ts'
import { type BrowseOptions, looking } from '../../admin/looking.ts'
import { values } from '../../admin/statement-values.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { type DeliverySummary, summary, SUMMARY, type SummaryRow } from './browse.ts'
import { checkId, narrowSql, statusesOf } from './filter.ts'
import { attemptsOf, bucketsOf, deliveriesOf, endpointsOf } from './tables.ts'

export interface DeliveryAttempt {
  /** 1 for the first since the delivery was sent, or requeued. */
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

const MOST_ATTEMPTS = 100

/** By its number; an event id will do where the event went to one endpoint only. */
export async function showDelivery(
  db: Database,
  id: string,
  options: BrowseOptions = {},
): Promise<DeliveryDetails> {
  checkId(id)
  const { schema } = options
  const remedy = 'Allow more time.'
  return looking(db, options, { what: 'looking for the delivery', remedy }, async (tx) => {
    const found: (Found & { readonly bucket: number })[] = []
    for (const bucket of await bucketsOf(tx, schema)) {
      found.push(...(await findIn(tx, schema, bucket, id)).map((row) => ({ ...row, bucket })))
    }
    const [row, another] = found
    if (row === undefined) throw notFound(id)
    if (another !== undefined) throw several(id, found)
    const { bucket, body, headers, ...rest } = row
    return {
      ...summary(rest),
      body,
      headers,
      history: await attemptsAt(tx, schema, bucket, rest.id),
      waitsFor: rest.status === 'pending' ? await waitedFor(tx, schema, bucket, rest) : null,
    }
  })
}

type Found = SummaryRow & Pick<DeliveryDetails, 'body' | 'headers'>

async function findIn(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  id: string,
): Promise<Found[]> {
  const value = values()
  const { rows } = await tx.query<Found>({
    text: `select ${SUMMARY}, d.body, d.headers
from ${deliveriesOf(schema)} as d left join ${endpointsOf(schema)} as e on e.id = d.endpoint_id
where d.bucket = ${value(bucket, 'smallint')} and ${narrowSql({ ids: [id] }, statusesOf({}), value)}
order by d.id`,
    values: value.all,
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
order by id desc limit ${MOST_ATTEMPTS}`,
    values: [bucket, delivery],
  })
  return rows.map((row) => ({ ...row, token: BigInt(row.token) })).toReversed()
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
    { remedy: `Give the number of one of its deliveries: ${numbers}.` },
  )
}
