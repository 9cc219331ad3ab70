/** The statements of a bulk change. Each reads a bounded number of rows, however few of them match. */
import { ownBuckets } from '../lease/backlog.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { type PositionalParameters, positionalParameters } from '../postgres/parameters.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { BulkChange, ChangedBy, RowFilter, Scan } from './bulk-change.ts'

/** The most rows one statement reads: 20 to 60 ms, so that no lock and no snapshot is held for longer. */
const MAX_SCANNED_ROWS = 50_000

/** Everything up to here was scanned. */
export interface ScanPosition {
  /** The value of the column that the scan is ordered by, to the microsecond; without such a column, -infinity. */
  readonly at: string
  readonly id: string
}

/** The last id of each bucket; a table without buckets has one. */
export type LastIds = readonly { readonly bucket: number | null; readonly upTo: string }[]

/** One scan over one bucket, up to its last id. */
export interface BucketScan<Filter> {
  readonly scan: Scan<Filter>
  readonly bucket: number | null
  readonly upTo: string
}

/** Which rows a statement concerns: those of one bucket scan, as they were when the change began. */
export interface ScanScope<Filter> extends BucketScan<Filter> {
  readonly schema: string
  readonly filter: Filter
  /** Seconds since 1970 by the clock of the database. */
  readonly startedAtSeconds: number
}

type Declaration<Filter extends RowFilter> = Pick<
  BulkChange<Filter, string>,
  'action' | 'table' | 'bucketed' | 'guard' | 'counts' | 'onePer' | 'set' | 'dueColumn'
>

/** The present in seconds since 1970, by the clock of the database. */
export async function readClock(db: Queryable): Promise<number> {
  const { rows } = await db.query<{ nowSeconds: string }>({
    // As a text, because extra_float_digits rounds a float8.
    text: 'select extract(epoch from now())::text as "nowSeconds"',
  })
  return Number(rows[0]?.nowSeconds ?? 0)
}

export async function findLastIds(
  db: Queryable,
  { table, bucketed }: Pick<BulkChange<RowFilter>, 'table' | 'bucketed'>,
  schema: string,
): Promise<LastIds> {
  const target = quoteQualified(schema, table)
  const lastIds: { bucket: number | null; upTo: string }[] = []
  for (const bucket of bucketed ? await ownBuckets(db, schema) : [null]) {
    const { rows } = await db.query<{ upTo: string | null }>({
      text: `select max(id)::text as "upTo" from ${target}${bucket === null ? '' : ' where bucket = $1::smallint'}`,
      values: bucket === null ? [] : [bucket],
    })
    const upTo = rows[0]?.upTo ?? null
    if (upTo !== null) lastIds.push({ bucket, upTo })
  }
  return lastIds
}

export interface CountedBatch {
  readonly matched: number
  readonly counts: Readonly<Record<string, number>>
  readonly next: ScanPosition | undefined
}

/** Counts the rows that match as far as one statement scans, and changes nothing. */
export async function countBatch<Filter extends RowFilter>(
  db: Queryable,
  declaration: Declaration<Filter>,
  scope: ScanScope<Filter>,
  after: ScanPosition,
): Promise<CountedBatch> {
  const { schema } = scope
  const parameter = positionalParameters()
  const { onePer } = declaration
  const matched = onePer === undefined ? 'count(*)' : `count(distinct ${onePer.value})`
  const counts = Object.entries(declaration.counts(schema)).flatMap(([name, aggregate]) =>
    aggregate === null ? [] : [`'${name}', ${aggregate}`],
  )
  const { rows } = await db.query<Scanned & Omit<CountedBatch, 'next'>>({
    text: `/* leasehold:${declaration.action} count */
with ${scannedSql(declaration, scope, after, parameter)}
select ${SCANNED}, (${matched} filter (where ${declaration.guard(schema)}))::int as matched,
  jsonb_build_object(${counts.join(', ')}) as counts
from ${quoteQualified(schema, declaration.table)} as r
where ${matchSql(scope, after, parameter)}`,
    values: parameter.values,
  })
  const [row] = rows
  if (row === undefined) return { matched: 0, counts: {}, next: undefined }
  return { matched: row.matched, counts: row.counts, next: endOfScan(row) }
}

export interface MatchingRows {
  /** In the order of the scan. */
  readonly ids: readonly string[]
  /** Rows that an earlier one of the same statement rules out. */
  readonly ruledOut: readonly string[]
  readonly next: ScanPosition | undefined
}

/** The rows that would be changed as far as one statement scans. */
export async function findMatching<Filter extends RowFilter>(
  db: Queryable,
  declaration: Declaration<Filter>,
  scope: ScanScope<Filter>,
  after: ScanPosition,
): Promise<MatchingRows> {
  const { schema, scan } = scope
  const parameter = positionalParameters()
  const partition = declaration.onePer?.value ?? 'id'
  const idsWhere = (condition: string): string =>
    `coalesce((select array_agg(id::text order by at, id) from matching where ${condition}), '{}')`
  const { rows } = await db.query<Scanned & Omit<MatchingRows, 'next'>>({
    text: `/* leasehold:${declaration.action} find */
with ${scannedSql(declaration, scope, after, parameter)},
matching as materialized (
  select id, ${orderColumn(scan)} as at, row_number() over (partition by ${partition} order by ${orderOf(scan)}) = 1 as is_first
  from ${quoteQualified(schema, declaration.table)} as r
  where ${matchSql(scope, after, parameter)}
    and ${declaration.guard(schema)}
)
select ${SCANNED}, ${idsWhere('is_first')} as ids, ${idsWhere('not is_first')} as "ruledOut"`,
    values: parameter.values,
  })
  const [row] = rows
  if (row === undefined) throw new Error('an aggregate returned no row')
  return { ids: row.ids, ruledOut: row.ruledOut, next: endOfScan(row) }
}

export interface BatchRequest {
  readonly after: ScanPosition
  /** How many rows to change at most. */
  readonly room: number
  readonly by: ChangedBy
  /** Rows per second; null: without a limit. */
  readonly rate: number | null
  /** The first time that is still free under the rate, in seconds since 1970. */
  readonly nextDueSeconds: number
}

export interface ChangedRows {
  /** The rows that were changed, in the order of the scan. */
  readonly ids: readonly string[]
  /** When the last of them is due, and the time of the transaction; seconds since 1970. */
  readonly lastDueSeconds: number | null
  readonly nowSeconds: number
  readonly next: ScanPosition | undefined
}

/**
 * Changes the next rows of the scan.
 *
 * Not SKIP LOCKED: whoever holds one of the rows is another operator, retention, or a worker that claims it at this
 * moment. Waiting tells whether the row still matches, where skipping would leave it out. All bulk changes lock in the
 * same order.
 *
 * With a rate and a due column each row is due at a time of its own: not before that of its predecessor in any earlier
 * batch, and not before the present.
 */
export async function changeBatch<Filter extends RowFilter>(
  tx: Queryable,
  declaration: Declaration<Filter>,
  scope: ScanScope<Filter>,
  { after, room, by, rate, nextDueSeconds }: BatchRequest,
): Promise<ChangedRows> {
  const { schema, bucket, scan } = scope
  const parameter = positionalParameters()
  const table = quoteQualified(schema, declaration.table)
  const { dueColumn } = declaration
  const assignments = [
    declaration.set(by, parameter),
    ...(dueColumn === undefined ? [] : [`${dueColumn} = ${dueSql(rate, nextDueSeconds, parameter)}`]),
  ]
  const { rows } = await tx.query<ChangeAnswer>({
    text: `/* leasehold:${declaration.action} */
with ${scannedSql(declaration, scope, after, parameter)},
picked as materialized (
  select id, ${orderColumn(scan)} as at from ${table} as r
  where ${matchSql(scope, after, parameter)}
    and ${declaration.guard(schema)}
  order by ${orderOf(scan)} limit ${parameter(room, 'int')}
  for update of r
),
-- The rows are updated by their ids from an array, and numbered by their position in it. Without statistics, a join with
-- the numbered rows was planned as a nested loop, which took ten times as long.
picked_ids as materialized (select array_agg(id order by at, id) as ids from picked),
changed as (
  update ${table} as r
  set ${assignments.join(', ')}
  where ${bucket === null ? '' : `r.bucket = ${parameter(bucket, 'smallint')} and `}r.id = any ((select ids from picked_ids)::bigint[])
  returning ${dueColumn === undefined ? 'null::timestamptz' : `r.${dueColumn}`} as due
)
select ${SCANNED}, extract(epoch from now())::text as "nowSeconds",
  coalesce((select ids::text[] from picked_ids), '{}') as ids,
  extract(epoch from max(due))::text as "lastDueSeconds",
  (select at::text from picked order by at desc, id desc limit 1) as "pickedAt"
from changed`,
    values: parameter.values,
  })
  const [row] = rows
  if (row === undefined) throw new Error('an aggregate returned no row')
  return {
    ids: row.ids,
    lastDueSeconds: row.lastDueSeconds === null ? null : Number(row.lastDueSeconds),
    nowSeconds: Number(row.nowSeconds),
    next: nextAfter(row, room),
  }
}

function dueSql(rate: number | null, nextDueSeconds: number, parameter: PositionalParameters): string {
  if (rate === null) return 'now()'
  const position = '(array_position((select ids from picked_ids), r.id) - 1)'
  // In a subquery, because Citus refuses a value that is computed from the time and a column (src/lease/table-sql.ts).
  return `(select greatest(now(), to_timestamp(${parameter(nextDueSeconds, 'float8')}))
    + make_interval(secs => ${position} / ${parameter(rate, 'float8')}))`
}

interface Scanned {
  readonly scannedAt: string | null
  readonly scannedId: string | null
  readonly isFull: boolean
}

interface ChangeAnswer extends Scanned {
  readonly ids: readonly string[]
  readonly lastDueSeconds: string | null
  readonly nowSeconds: string
  readonly pickedAt: string | null
}

/** A full batch ends before its scan does, unless its last row is also the last one that was scanned. */
function nextAfter(row: ChangeAnswer, room: number): ScanPosition | undefined {
  const id = row.ids.at(-1)
  const isFullBatch = row.ids.length === room && id !== undefined && row.pickedAt !== null
  if (!isFullBatch || id === row.scannedId) return endOfScan(row)
  return { at: row.pickedAt, id }
}

/** Where the next scan starts; undefined: there is nothing more to scan. */
function endOfScan({ scannedAt, scannedId, isFull }: Scanned): ScanPosition | undefined {
  return isFull && scannedAt !== null && scannedId !== null ? { at: scannedAt, id: scannedId } : undefined
}

const SCANNED = `(select at::text from edge) as "scannedAt", (select id::text from edge) as "scannedId",
  (select count(*) from scanned) = ${MAX_SCANNED_ROWS} as "isFull"`

/** `scanned` is how far this statement reads, and `edge` its last row; a filter that matches rarely reads no further. */
function scannedSql<Filter extends RowFilter>(
  { table }: Declaration<Filter>,
  scope: ScanScope<Filter>,
  after: ScanPosition,
  parameter: PositionalParameters,
): string {
  const { schema, scan, filter } = scope
  return `scanned as materialized (
  select ${orderColumn(scan)} as at, id from ${quoteQualified(schema, table)} as r
  where ${rangeSql(scope, after, parameter)} and ${scan.narrow(filter, parameter)}
  order by ${orderOf(scan)} limit ${MAX_SCANNED_ROWS}
),
edge as materialized (select at, id from scanned order by at desc, id desc limit 1)`
}

/** The rows that match, as far as the statement scans. */
function matchSql<Filter extends RowFilter>(
  scope: ScanScope<Filter>,
  after: ScanPosition,
  parameter: PositionalParameters,
): string {
  const { schema, scan, filter, startedAtSeconds } = scope
  const edge =
    scan.orderedBy === undefined
      ? 'id <= (select id from edge)'
      : `(${scan.orderedBy}, id) <= ((select at from edge), (select id from edge))`
  const finished =
    scan.finishedAt === undefined
      ? ''
      : `\n    and ${scan.finishedAt} < to_timestamp(${parameter(startedAtSeconds, 'float8')})`
  return `${rangeSql(scope, after, parameter)} and ${edge}
    and ${scan.where(filter, parameter, schema)}${finished}`
}

/** From the position on, up to where the bucket and the scan ended when the change began. */
function rangeSql<Filter extends RowFilter>(
  { scan, bucket, upTo, startedAtSeconds }: ScanScope<Filter>,
  { at, id }: ScanPosition,
  parameter: PositionalParameters,
): string {
  const inBucket = bucket === null ? '' : `bucket = ${parameter(bucket, 'smallint')} and `
  const range =
    scan.orderedBy === undefined
      ? `id > ${parameter(id, 'bigint')}`
      : `(${scan.orderedBy}, id) > (${parameter(at, 'timestamptz')}, ${parameter(id, 'bigint')})
    and ${scan.orderedBy} < to_timestamp(${parameter(startedAtSeconds, 'float8')})`
  return `${inBucket}${range} and id <= ${parameter(upTo, 'bigint')}`
}

function orderColumn({ orderedBy }: Scan<never>): string {
  return orderedBy ?? "'-infinity'::timestamptz"
}

function orderOf({ orderedBy }: Scan<never>): string {
  return orderedBy === undefined ? 'id' : `${orderedBy}, id`
}
