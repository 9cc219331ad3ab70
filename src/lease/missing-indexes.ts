/**
 * Which indexes a table lacks, by the catalog. Without them nothing is wrong, but a claim or a reap reads more rows than
 * it must: a table that lacks some is warned about, and never refused.
 */
import { isLeaseholdError } from '../errors.ts'
import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { Mismatch, TableIndex, TableShape } from './inspect.ts'
import { type LeaseTable, type Sql, SUSPECT_EXPIRIES } from './table.ts'
import { tableSql } from './table-sql.ts'

/** A search that a worker makes again and again, and what an index must be like to serve it. */
interface Search {
  readonly what: string
  /** The end of the name of the index that would serve it. */
  readonly purpose: string
  readonly columns: readonly { readonly column: string; readonly descending?: boolean }[]
  /** The rows that the index that would serve it has. */
  readonly among: Sql
  /** Which of these it looks for, if not all: each must be in an index that serves it. */
  readonly only?: readonly Sql[]
  readonly fits: (index: TableIndex) => boolean
  readonly otherRemedy?: string
}

/** The searches that no index serves, each with the statement that creates one. */
export async function missingIndexes(
  db: Database,
  table: LeaseTable,
  shape: TableShape,
): Promise<readonly Mismatch[]> {
  // What contains what cannot be asked about rows of other nodes.
  if (shape.distributed) return []
  return db.transaction(async (tx) => {
    await tx.query({ text: 'set local constraint_exclusion = on' })
    const missing: Mismatch[] = []
    for (const search of [...claimSearches(table, shape), reapSearch(table)]) {
      if (await isServed(tx, table, shape, search)) continue
      const statement = await createIndex(tx, table, shape, search)
      missing.push({ what: search.what, remedy: `Run: ${statement}${search.otherRemedy ?? ''}` })
    }
    return missing
  })
}

function claimSearches(table: LeaseTable, shape: TableShape): Search[] {
  const { ordering, groups, bucket, attempts } = table
  const inOrder = [
    ...(groups === undefined ? [] : [{ column: groups }]),
    ...table.order.map(({ column, direction }) => ({ column, descending: direction === 'desc' })),
  ]
  const afterBucket = ({ columns }: TableIndex): TableIndex['columns'] =>
    columns[0] === bucket ? columns.slice(1) : columns
  // In a table with an ordering key, rows that have one are found by it.
  const unkeyed =
    ordering === undefined ? table.claimable : `(${table.claimable}) AND ${quote(ordering.key)} IS NULL`
  const expiries = attempts?.expiries
  const { expiries: counter = '' } = tableSql(table, shape)
  // A claim looks for rows that are due. The moment itself stays out of this: no index can depend on it.
  const due = table.availableAt === undefined ? [] : [`${quote(table.availableAt)} IS NOT NULL`]
  const searches: Search[] = [
    {
      what: 'no index serves the claim, which would read every row',
      purpose: 'claim',
      columns: inOrder,
      among: unkeyed,
      // Suspects have an index of their own.
      only: [...due, ...(expiries === undefined ? [] : [`${counter} < ${SUSPECT_EXPIRIES}`])],
      // In the order of the claim it must have claimable rows only; in another order, begin with a column by which these are chosen.
      fits: (index) =>
        (index.predicate !== undefined && beginsWith(afterBucket(index), inOrder)) ||
        mentions(table.claimable, afterBucket(index)[0] ?? ''),
    },
  ]
  if (ordering !== undefined) {
    const key = { column: ordering.key }
    const keys = [...(groups === undefined ? [] : [{ column: groups }]), key]
    if (groups === undefined) {
      const arrivals = [table.availableAt, ...table.id].flatMap((column) =>
        column === undefined ? [] : [{ column }],
      )
      searches.push({
        what: 'no index serves the claim by ordering key, which would read every row that has one',
        purpose: 'arrivals',
        columns: arrivals,
        among: `(${table.claimable}) AND ${quote(ordering.key)} IS NOT NULL`,
        only: due,
        fits: (index) =>
          mentions(index.predicate ?? '', ordering.key) && beginsWith(afterBucket(index), arrivals),
      })
    }
    searches.push({
      what: 'no index serves the search for the head of an ordering key, which would read every row',
      purpose: 'keys',
      columns: [...keys, ...table.id.map((column) => ({ column }))],
      among: `${quote(ordering.key)} IS NOT NULL AND (${ordering.unfinished})`,
      fits: (index) => beginsWith(afterBucket(index), keys),
    })
  }
  if (expiries !== undefined) {
    searches.push({
      what: 'no index serves the search for suspects, which would read every row',
      purpose: 'suspects',
      columns: inOrder,
      among: `(${table.claimable}) AND ${counter} >= ${SUSPECT_EXPIRIES}`,
      only: due,
      // Suspects are few, and are found by an index that has nothing else in it.
      fits: ({ predicate = '' }) => mentions(predicate, expiries),
      otherRemedy: ' Or set `attempts.expiries` to false to count no expiries.',
    })
  }
  return searches
}

/**
 * A backlog of a million rows without a lease must not be read to find the few with one. The end of the lease itself
 * stays out of the index that is suggested, so that a renewal is a HOT update.
 */
function reapSearch(table: LeaseTable): Search {
  const { lease, leased } = table
  return {
    what: 'no index serves the reaper, which would read every row',
    purpose: 'leased',
    columns: table.id.map((column) => ({ column })),
    among: leased ?? `${quote(lease.owner)} IS NOT NULL`,
    // What has expired has an end.
    only: [`${quote(lease.until)} IS NOT NULL`],
    fits: ({ columns, predicate = '' }) => {
      if (leased !== undefined && normalized(predicate) === normalized(leased)) return true
      // "owner IS NULL" is the predicate of an index for claims.
      const others = predicate.replaceAll(/\(?("[^"]*"|\w+) IS NULL\)?/gi, '')
      return [lease.owner, lease.until].some((column) => columns.includes(column) || mentions(others, column))
    },
  }
}

async function isServed(
  tx: Queryable,
  table: LeaseTable,
  shape: TableShape,
  search: Search,
): Promise<boolean> {
  const rows = [`(${search.among})`, ...(search.only ?? [])].join(' AND ')
  for (const index of shape.indexes) {
    if (search.fits(index) && (await contains(tx, table, index, rows))) return true
    // Leased rows are also found by an index that has no claimable ones.
    if (search.purpose !== 'leased' || index.predicate === undefined) continue
    if ((await contains(tx, table, index, rows)) && !(await contains(tx, table, index, table.claimable)))
      return true
  }
  return false
}

/**
 * Whether PostgreSQL can prove that all these rows are in the index: a search for one that is not has a contradiction
 * for a condition, which is planned as a result without a scan whatever the statistics say.
 */
async function contains(
  tx: Queryable,
  table: LeaseTable,
  { predicate }: TableIndex,
  rows: Sql,
): Promise<boolean> {
  if (predicate === undefined || normalized(predicate) === normalized(rows)) return true
  await tx.query({ text: 'savepoint leasehold_index' })
  let plan: { readonly 'Node Type': string; readonly Plans?: unknown } | undefined
  try {
    const { rows: plans } = await tx.query<{ 'QUERY PLAN': [{ Plan: typeof plan }] }>({
      text: `explain (format json) select from ${quoteQualified(table.schema, table.name)}
        where (${rows}) and (${predicate}) is not true`,
    })
    plan = plans[0]?.['QUERY PLAN'][0].Plan
  } catch (error) {
    // The index has a function that this role may not call; claims do not need it.
    if (!isLeaseholdError(error, 'PERMISSION_DENIED')) throw error
    await tx.query({ text: 'rollback to leasehold_index' })
  }
  return plan?.['Node Type'] === 'Result' && plan.Plans === undefined
}

function beginsWith(columns: TableIndex['columns'], wanted: Search['columns']): boolean {
  return wanted.every(({ column }, i) => columns[i] === column)
}

/** Whether a condition names the column, as PostgreSQL prints it: in quotes where it needs them. */
function mentions(condition: Sql, column: string): boolean {
  return condition.split(/("(?:[^"]|"")*"|\w+)/).some((word) => word === column || word === `"${column}"`)
}

/** A condition without the casts, parentheses, quotes and spaces that PostgreSQL adds when it prints one. */
export function normalized(condition: Sql): string {
  return condition
    .toLowerCase()
    .replaceAll(/::\w+(?: varying| with(?:out)? time zone)?/g, '')
    .replaceAll(/[\s()"]/g, '')
}

async function createIndex(
  tx: Queryable,
  table: LeaseTable,
  shape: TableShape,
  { purpose, columns, among }: Search,
): Promise<string> {
  // PostgreSQL builds no index concurrently over partitions.
  const concurrently = shape.partitioned ? '' : 'CONCURRENTLY '
  const name = quote(await freeIndexName(tx, table, purpose))
  const listed = [
    ...(table.bucket === undefined ? [] : [quote(table.bucket)]),
    ...columns.map(({ column, descending = false }) => `${quote(column)}${descending ? ' DESC' : ''}`),
  ]
  return `CREATE INDEX ${concurrently}${name} ON ${quoteQualified(table.schema, table.name)} (${listed.join(', ')}) WHERE ${among};`
}

/** A name that nothing in the schema has: an index that is invalid or does not fit may have the plain one. */
export async function freeIndexName(
  db: Queryable,
  { schema, name }: Pick<LeaseTable, 'schema' | 'name'>,
  purpose: string,
): Promise<string> {
  const { rows } = await db.query<{ name: string }>({
    text: `select c.relname::text as name from pg_catalog.pg_class as c
      join pg_catalog.pg_namespace as n on n.oid = c.relnamespace where n.nspname = $1`,
    values: [schema],
  })
  const taken = new Set(rows.map((row) => row.name))
  for (let n = 1; ; n += 1) {
    const end = `_${purpose}${n === 1 ? '' : `_${n}`}`
    const free = `${name.slice(0, 63 - end.length)}${end}`
    if (!taken.has(free)) return free
  }
}
