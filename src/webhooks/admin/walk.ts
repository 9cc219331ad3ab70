/**
 * How a change finds its deliveries. Each statement scans a bounded number of rows, however few of them match: failed
 * deliveries along their index in the order in which they failed, all others along the ids.
 */
import { BEFORE_FIRST } from '../../admin/buckets.ts'
import type { Values } from '../../admin/statement-values.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { DELIVERY_STATUSES, type DeliveryStatus } from '../transitions.ts'
import { type DeliveryFilter, filterSql, narrowSql } from './filter.ts'
import { bucketsOf, deliveriesOf } from './tables.ts'

/** The most deliveries one transaction changes. */
export const CHANGE_BATCH = 1_000

/** The most rows one statement scans: 20 to 60 ms, so that no lock and no snapshot is held for longer. */
const MAX_SCANNED = 50_000

/** Which deliveries of one bucket and one state, as they were when the change began. */
export interface Chosen {
  readonly schema: string
  readonly filter: DeliveryFilter
  readonly status: DeliveryStatus
  readonly bucket: number
  /** What was sent later does not match. */
  readonly upTo: string
  /** Seconds since 1970 by the clock of the database: what was finished later does not match. */
  readonly asOf: number
}

/** Everything up to here was scanned. */
export interface Cursor {
  /** When it failed, to the microsecond; of no meaning for other states. */
  readonly at: string
  readonly id: string
}

export const START: Cursor = { at: '-infinity', id: BEFORE_FIRST }

export interface Beginning {
  readonly asOf: number
  readonly ends: readonly { readonly bucket: number; readonly upTo: string }[]
}

/** The present, by the clock of the database, and where each bucket ends. */
export async function beginning(db: Queryable, schema: string): Promise<Beginning> {
  const { rows } = await db.query<{ now: number }>({
    text: 'select extract(epoch from now())::float8 as now',
  })
  const ends: { bucket: number; upTo: string }[] = []
  for (const bucket of await bucketsOf(db, schema)) {
    const last = await db.query<{ bucket: number; upTo: string }>({
      text: `select $1::smallint as bucket, max(id)::text as "upTo" from ${deliveriesOf(schema)} where bucket = $1::smallint`,
      values: [bucket],
    })
    ends.push(...last.rows)
  }
  return { asOf: rows[0]?.now ?? 0, ends }
}

/** `scanned` is how far this statement may scan, and `edge` its end; a rare filter does not make it read further. */
export function scannedSql(chosen: Chosen, cursor: Cursor, value: Values): string {
  const { schema, filter, status, bucket } = chosen
  const { ids, failedSince } = filter
  const { at, order } = orderOf(status)
  // Along the ids every row counts, whatever its state: only then is the scan bounded.
  const narrow =
    status === 'failed'
      ? narrowSql({ ids, failedSince }, ['failed'], value)
      : narrowSql({ ids }, DELIVERY_STATUSES, value)
  return `scanned as materialized (
  select ${at} as at, d.id from ${deliveriesOf(schema)} as d
  where d.bucket = ${value(bucket, 'smallint')} and ${rangeSql(chosen, cursor, value)} and ${narrow}
  order by ${order} limit ${MAX_SCANNED}
),
edge as materialized (select at, id from scanned order by at desc, id desc limit 1)`
}

/** The deliveries d that match, as far as the statement scans. */
export function matchedSql(chosen: Chosen, cursor: Cursor, value: Values): string {
  const { schema, filter, status, bucket, asOf } = chosen
  const edge =
    status === 'failed'
      ? '(d.failed_at, d.id) <= ((select at from edge), (select id from edge))'
      : 'd.id <= (select id from edge)'
  const finished =
    status === 'delivered' ? ` and d.delivered_at < to_timestamp(${value(asOf, 'float8')})` : ''
  return `d.bucket = ${value(bucket, 'smallint')} and ${rangeSql(chosen, cursor, value)} and ${edge}
    and ${filterSql(filter, [status], value, schema)}${finished}`
}

/** In the order of the scan. */
export function orderSql(status: DeliveryStatus): string {
  return orderOf(status).order
}

/** What a scan returns: where the next one continues, and whether there is more. */
export const SCANNED = `(select at::text from edge) as at, (select id::text from edge) as id,
  (select count(*) from scanned) = ${MAX_SCANNED} as full`

export interface Scanned {
  /** Null: there was nothing to scan. */
  readonly at: string | null
  readonly id: string | null
  readonly full: boolean
}

/** Where the next scan begins; undefined: this was the last. */
export function nextCursor({ at, id, full }: Scanned): Cursor | undefined {
  return full && at !== null && id !== null ? { at, id } : undefined
}

function orderOf(status: DeliveryStatus): { readonly at: string; readonly order: string } {
  return status === 'failed'
    ? { at: 'd.failed_at', order: 'd.failed_at, d.id' }
    : { at: "'-infinity'::timestamptz", order: 'd.id' }
}

function rangeSql({ status, upTo, asOf }: Chosen, { at, id }: Cursor, value: Values): string {
  return status === 'failed'
    ? `(d.failed_at, d.id) > (${value(at, 'timestamptz')}, ${value(id, 'bigint')})
    and d.failed_at < to_timestamp(${value(asOf, 'float8')})`
    : `d.id > ${value(id, 'bigint')} and d.id <= ${value(upTo, 'bigint')}`
}
