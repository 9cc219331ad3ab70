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
  /** Asked once, before the rows are read; undefined: they are read as `isIndexed` says. */
  readonly among?: ((tx: Queryable) => Promise<Among | undefined>) | undefined
  /** The conditions of a bucket's rows, on columns without a prefix; besides those that `among` satisfies. */
  readonly where: (
    parameter: PositionalParameters,
    tx: Queryable,
    bucket: number | undefined,
    among: Among | undefined,
  ) => readonly string[] | Promise<readonly string[]>
  /** What is selected of a row `r`, and of what is joined to it. */
  readonly columns: string
  readonly joins?: string
  /** What the listing is called, and the advice when it takes too long. */
  readonly what: string
  readonly remedy: string
}

/**
 * The rows of a few values of a column, for example of the endpoints of a tenant, by an index over the column, the bucket
 * and the id. The newest rows of each value are merged. Otherwise all rows would be read from the newest on, those of
 * everybody else too.
 */
export interface Among {
  readonly column: string
  /** Its SQL type. */
  readonly type: string
  /** At most a thousand or so: the newest row of each is looked up. */
  readonly values: readonly string[]
  /** Whether no other condition has to be checked row by row. */
  readonly isIndexed: boolean
}

/**
 * The planner does not know which value it is. Where a few values have most rows it would rather read the whole table, or a
 * whole bucket, and sort it, to find as little.
 */
export const ALONG_INDEX =
  'set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off'

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
    const among = await listing.among?.(tx)
    const { isIndexed } = among ?? listing
    if (among !== undefined) await tx.query({ text: ALONG_INDEX })
    const down =
      maxScanned === undefined || isIndexed
        ? undefined
        : await scannedDownTo(tx, { table: listing.table, among }, buckets, before, maxScanned)
    const found: Row[] = []
    for (const bucket of buckets) {
      found.push(...(await newestOfBucket<Row>(tx, listing, bucket, { limit, before, down, among })))
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
  { table, among }: { readonly table: string; readonly among: Among | undefined },
  buckets: readonly (number | undefined)[],
  before: string | undefined,
  maxScanned: number,
): Promise<string | undefined> {
  const newestAfter = async (skipped: number): Promise<bigint | undefined> => {
    const ids: bigint[] = []
    for (const bucket of buckets) {
      const parameter = positionalParameters()
      const text = newestSql(
        { table, among, columns: 'id', conditions: [], bucket, before, down: undefined },
        `offset ${parameter(skipped, 'int')} limit 1`,
        parameter,
      )
      const { rows } = await tx.query<{ id: string }>({
        text: `select id::text as id from (${text}) as r`,
        values: parameter.values,
      })
      ids.push(...rows.map(({ id }) => BigInt(id)))
    }
    // One position for all buckets: the newest of them, so that none reads more.
    return ids.toSorted((a, b) => (a > b ? -1 : 1))[0]
  }
  if (among === undefined) return (await newestAfter(maxScanned))?.toString()
  const rows = Math.ceil(maxScanned / SCATTERED_COST)
  // Each value has its part of the rows.
  const byPart = await newestAfter(Math.ceil(rows / Math.max(1, among.values.length)))
  if (byPart === undefined) return undefined
  // Where one value has most rows, its part is soon read. But so many ids are not more rows, whoever has them.
  const start = before === undefined ? ((await newestAfter(0)) ?? 0n) + 1n : BigInt(before)
  const byIds = start - BigInt(rows)
  const down = byIds < byPart ? byIds : byPart
  return down > 0n ? down.toString() : undefined
}

/** The rows of a value are scattered over the table: reading one of them takes so many times as long (6 µs instead of 1.3). */
const SCATTERED_COST = 5

interface Newest {
  readonly table: string
  readonly among: Among | undefined
  readonly columns: string
  readonly conditions: readonly string[]
  readonly bucket: number | undefined
  readonly before: string | undefined
  readonly down: string | undefined
}

/** The newest rows of a bucket, or those of each value among which rows are read. */
function newestSql(newest: Newest, limitSql: string, parameter: PositionalParameters): string {
  const { table, among, columns } = newest
  const conditions = conditionsOf(newest, parameter)
  if (among === undefined)
    return `select ${columns} from ${table} as r where ${conditions.join(' and ')} order by r.id desc ${limitSql}`
  return `select r.* from ${valuesSql(among, parameter)} cross join lateral (
    ${newestOfValueSql(table, among, columns, conditions, limitSql)}
  ) as r`
}

/**
 * The same for a page of many values. First a few ids of each are read. Where these are as many as the page has rows, the
 * page begins above the last of so many, and only values that have a newer row are in it.
 */
function pageOfManySql(
  newest: Newest & { readonly among: Among },
  rows: number,
  parameter: PositionalParameters,
): string {
  const { table, among, columns } = newest
  const conditions = conditionsOf(newest, parameter)
  const ofEach = Math.min(rows, Math.ceil((SAMPLED_PAGES * rows) / Math.max(1, among.values.length)))
  const inPage = 'id >= (select id from page_end)'
  return `with sampled as materialized (
    select among.value, newest.id from ${valuesSql(among, parameter)} cross join lateral (
      ${newestOfValueSql(table, among, 'id', conditions, `limit ${parameter(ofEach, 'int')}`)}
    ) as newest
  ),
  page_end as materialized (
    select coalesce((select id from sampled order by id desc offset ${parameter(rows - 1, 'int')} limit 1), 0) as id
  )
  select r.* from (select distinct value from sampled where ${inPage}) as among cross join lateral (
    ${newestOfValueSql(table, among, columns, [...conditions, inPage], `limit ${parameter(rows, 'int')}`)}
  ) as r`
}

/** So many times as many ids as a page has rows are read before it: enough where a quarter of the values have rows at all. */
const SAMPLED_PAGES = 4

function conditionsOf(
  { conditions, bucket, before, down }: Newest,
  parameter: PositionalParameters,
): readonly string[] {
  return [
    bucket === undefined ? 'true' : `bucket = ${parameter(bucket, 'smallint')}`,
    ...(before === undefined ? [] : [`id < ${parameter(before, 'bigint')}`]),
    ...(down === undefined ? [] : [`id >= ${parameter(down, 'bigint')}`]),
    ...conditions,
  ]
}

function valuesSql({ type, values }: Among, parameter: PositionalParameters): string {
  return `unnest(${parameter(values, `${type}[]`)}) as among (value)`
}

/**
 * The newest rows of the value `among.value`. `= any (array[…])` is no equality to the planner, so that only the index of the
 * column has the rows in this order. With an equality it could take the primary key, and read the rows of all others until
 * it meets one that has been quiet.
 */
function newestOfValueSql(
  table: string,
  { column }: Among,
  columns: string,
  conditions: readonly string[],
  limitSql: string,
): string {
  return `select ${columns} from ${table}
    where ${[`${column} = any (array[among.value])`, ...conditions].join(' and ')}
    order by ${column} desc, id desc ${limitSql}`
}

async function newestOfBucket<Row extends object>(
  tx: Queryable,
  { table, where, columns, joins = '' }: Listing,
  bucket: number | undefined,
  { limit, ...range }: Pick<Newest, 'before' | 'down' | 'among'> & { readonly limit: number },
): Promise<Row[]> {
  const parameter = positionalParameters()
  const conditions = await where(parameter, tx, bucket, range.among)
  // One more than the page has shows whether there is another.
  const pageRows = parameter(limit + 1, 'int')
  const { among } = range
  const newest = { table, columns: '*', conditions, bucket, ...range }
  // Where rows have to be checked one by one, the sample could read as many as the page itself.
  const newestRows =
    among?.isIndexed === true
      ? pageOfManySql({ ...newest, among }, limit + 1, parameter)
      : newestSql(newest, `limit ${pageRows}`, parameter)
  // The page first, then the joins: a join before the limit would be planned as one of the whole table.
  const { rows } = await tx.query<Row>({
    text: `with page as materialized (
  select * from (
    ${newestRows}
  ) as newest
  order by id desc limit ${pageRows}
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
