/** Reads for operators: in a read-only transaction, for a bounded time, one page at a time. */
import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import { ownBuckets } from '../lease/backlog.ts'
import type { Database } from '../postgres/database.ts'
import { type PositionalParameters, positionalParameters } from '../postgres/parameters.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { checkPageSize, checkTimeout, invalid, isRowId, MAX_PAGE_SIZE } from './request-checks.ts'

export interface BrowseOptions {
  readonly schema?: string | undefined
  /** How long the database may take, in milliseconds. Default 10,000. */
  readonly timeoutMs?: number | undefined
}

export interface PageOptions extends BrowseOptions {
  /** Default 50, at most 1,000. */
  readonly limit?: number | undefined
  /** Only rows with smaller ids: `next` of the page before. */
  readonly before?: string | undefined
  /**
   * Where no index leads to the rows, read at most so many rows of each bucket for a page. A page may then have fewer rows
   * than it could, or none, although there is a next one. Default: without a limit, up to the timeout.
   */
  readonly maxScanned?: number | undefined
}

export interface Page<Row> {
  readonly rows: readonly Row[]
  /** Where the next page starts; null when this was the last. */
  readonly next: string | null
}

const DEFAULT_TIMEOUT_MS = 10_000
export const DEFAULT_PAGE_SIZE = 50

/** Runs the queries in one read-only transaction; `remedy` is the advice when they take too long. */
export async function readOnly<Found>(
  db: Database,
  { timeoutMs = DEFAULT_TIMEOUT_MS }: BrowseOptions,
  { what, remedy }: { readonly what: string; readonly remedy: string },
  read: (tx: Queryable) => Promise<Found>,
): Promise<Found> {
  checkTimeout(timeoutMs)
  try {
    // One snapshot for all buckets: a replay may move an event from a bucket to another one.
    return await db.transaction(read, { queryTimeoutMs: timeoutMs, readOnly: true })
  } catch (error) {
    if (!isLeaseholdError(error, 'QUERY_TIMEOUT')) throw error
    const message = `${what} was stopped after ${timeoutMs} ms: too many rows had to be read.`
    throw new LeaseholdError('QUERY_TIMEOUT', message, { remedy, cause: error })
  }
}

/** Reads page after page until there is no other, for callers that must not miss a row. */
export async function readAllPages<Row>(
  readPage: (page: Required<Pick<PageOptions, 'limit'>> & Pick<PageOptions, 'before'>) => Promise<Page<Row>>,
): Promise<Row[]> {
  const rows: Row[] = []
  let before: string | undefined
  do {
    const page: Page<Row> = await readPage({ limit: MAX_PAGE_SIZE, before })
    rows.push(...page.rows)
    before = page.next ?? undefined
  } while (before !== undefined)
  return rows
}

export interface Listing {
  /** The table as SQL names it. */
  readonly table: string
  /** Whether it has a bucket column. Each bucket is read by a statement of its own, which concerns one shard. */
  readonly bucketed: boolean
  /** The name of one row, for messages: `an event`. */
  readonly row: string
  /** Whether an index leads to the rows that satisfy the conditions; otherwise all rows are read, from the newest on. */
  readonly isIndexed: boolean
  /** The conditions of a bucket's rows, on columns without a prefix. */
  readonly where: (
    parameter: PositionalParameters,
    tx: Queryable,
    bucket: number | undefined,
  ) => readonly string[] | Promise<readonly string[]>
  /** What is selected of a row `r`, and of what is joined to it. */
  readonly columns: string
  readonly joins?: string
  /** What the listing is called, and the advice when it takes too long. */
  readonly what: string
  readonly remedy: string
}

/** One page of rows, newest first: by their id, which is nearly the order in which they were written. */
export async function listNewestFirst<Row extends { readonly id: string }>(
  db: Database,
  options: PageOptions,
  listing: Listing,
): Promise<Page<Row>> {
  const { limit = DEFAULT_PAGE_SIZE, before, maxScanned } = options
  checkPageSize(limit)
  if (before !== undefined && !isRowId(before)) {
    throw invalid('before', before, `Give the id of ${listing.row}: \`next\` of the page before.`)
  }
  return readOnly(db, options, listing, async (tx) => {
    const buckets = listing.bucketed ? await ownBuckets(tx, options.schema) : [undefined]
    const down =
      maxScanned === undefined || listing.isIndexed
        ? undefined
        : await scannedDownTo(tx, listing.table, buckets, before, maxScanned)
    const found: Row[] = []
    for (const bucket of buckets) {
      found.push(...(await newestOfBucket<Row>(tx, listing, bucket, { limit, before, down })))
    }
    // Each bucket returned its newest rows, so the newest of all are among them.
    const page = cutPage(
      found.sort((a, b) => (BigInt(a.id) > BigInt(b.id) ? -1 : 1)),
      limit,
      ({ id }) => id,
    )
    return { rows: page.rows, next: page.next ?? down ?? null }
  })
}

/** The id down to which a page is read, so that it reads at most so many rows of a bucket; undefined: to the end. */
async function scannedDownTo(
  tx: Queryable,
  table: string,
  buckets: readonly (number | undefined)[],
  before: string | undefined,
  maxScanned: number,
): Promise<string | undefined> {
  const ends: bigint[] = []
  for (const bucket of buckets) {
    const parameter = positionalParameters()
    const conditions = [
      bucket === undefined ? 'true' : `bucket = ${parameter(bucket, 'smallint')}`,
      ...(before === undefined ? [] : [`id < ${parameter(before, 'bigint')}`]),
    ]
    const { rows } = await tx.query<{ id: string }>({
      text: `select id::text as id from ${table} as r where ${conditions.join(' and ')}
order by r.id desc offset ${parameter(maxScanned, 'int')} limit 1`,
      values: parameter.values,
    })
    ends.push(...rows.map(({ id }) => BigInt(id)))
  }
  // One position for all buckets: the newest of them, so that none reads more.
  const [newest] = ends.toSorted((a, b) => (a > b ? -1 : 1))
  return newest?.toString()
}

async function newestOfBucket<Row extends object>(
  tx: Queryable,
  { table, where, columns, joins = '' }: Listing,
  bucket: number | undefined,
  {
    limit,
    before,
    down,
  }: { readonly limit: number; readonly before: string | undefined; readonly down: string | undefined },
): Promise<Row[]> {
  const parameter = positionalParameters()
  const conditions = [
    bucket === undefined ? 'true' : `bucket = ${parameter(bucket, 'smallint')}`,
    ...(before === undefined ? [] : [`id < ${parameter(before, 'bigint')}`]),
    ...(down === undefined ? [] : [`id >= ${parameter(down, 'bigint')}`]),
    ...(await where(parameter, tx, bucket)),
  ]
  // The page first, then the joins: a join before the limit would be planned as one of the whole table.
  const { rows } = await tx.query<Row>({
    text: `with page as materialized (
  select * from ${table} where ${conditions.join(' and ')}
  order by id desc limit ${parameter(limit + 1, 'int')}  -- one more than the page has shows whether there is another
)
select ${columns} from page as r ${joins} order by r.id desc`,
    values: parameter.values,
  })
  return rows
}

/** Cuts a page out of rows of which there is one more than the page has, if there is another page. */
export function cutPage<Row>(found: readonly Row[], limit: number, keyOf: (row: Row) => string): Page<Row> {
  const rows = found.slice(0, limit)
  const last = rows.at(-1)
  return { rows, next: found.length > limit && last !== undefined ? keyOf(last) : null }
}
