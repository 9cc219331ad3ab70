import { inspectTable } from '../lease/inspect.ts'
import type { LeaseTable } from '../lease/table.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'

/** Reads how many seconds the oldest row has waited that could be claimed now; 0 when there is none. */
export type PendingAge = (db: Queryable) => Promise<number | undefined>

/**
 * The age is that of `availableAt` or, without it, of the first column of the order where that is a moment; a table
 * that has neither has no age, and the answer is undefined.
 */
export function pendingAge(table: LeaseTable): PendingAge {
  let moment: { readonly column: string | undefined } | undefined

  return async (db) => {
    moment ??= { column: await momentColumn(db, table) }
    if (moment.column === undefined) return undefined
    const text =
      table.bundles !== undefined
        ? oldestInBundles(table, moment.column)
        : table.lanes === undefined
          ? oldest(table, moment.column)
          : oldestInLanes(table, table.lanes, moment.column)
    const { rows } = await db.query<{ age: number | null }>({ text })
    return Math.max(0, rows[0]?.age ?? 0)
  }
}

/** `min` is a look at the first entry of an index that begins with the column, in either direction. */
function oldest(table: LeaseTable, moment: string): string {
  return `select extract(epoch from now() - min(${quote(moment)}))::float8 as age
from ${quoteQualified(table.schema, table.name)}
where ${pendingWhere(table)}`
}

/** From lane to lane along the index, and the first entry of each. */
function oldestInLanes(table: LeaseTable, lanes: string, moment: string): string {
  const target = quoteQualified(table.schema, table.name)
  const key = [...(table.bucket === undefined ? [] : [table.bucket]), lanes].map(quote)
  const names = key.map((_, i) => `l${i}`)
  const lane = key.map((column, i) => `${column} as l${i}`).join(', ')
  const isThere = [`(${table.claimable})`, ...notBehind(table)].join(' and ')
  const after = `(${key.join(', ')}) > (${names.map((name) => `lane.${name}`).join(', ')})`
  const same = key.map((column, i) => `${column} = lane.l${i}`).join(' and ')
  return `with recursive lane as (
  (select ${lane} from ${target} where ${isThere} order by ${key.join(', ')} limit 1)
  union all
  select next.* from lane cross join lateral (
    select ${lane} from ${target} where ${isThere} and ${after} order by ${key.join(', ')} limit 1
  ) as next
)
select extract(epoch from now() - min(first.at))::float8 as age
from lane cross join lateral (
  select ${quote(moment)} as at from ${target} where ${same} and ${pendingWhere(table)} order by ${quote(moment)} limit 1
) as first`
}

/** From bucket to bucket, and from bundle to bundle until one has a row that waits. */
function oldestInBundles(table: LeaseTable, moment: string): string {
  const { bucket } = table
  const bundles = pendingInBundles(
    table,
    `select ${quote(moment)} as at`,
    `order by ${quote(moment)} limit 1`,
  )
  const first = (where: string): string => `select waiting.at from ${bundles} ${where} limit 1`
  const age = 'extract(epoch from now() - min(at))::float8 as age'
  if (bucket === undefined) return `select ${age} from (${first('')}) as first`
  const next = (where: string): string =>
    `select ${quote(bucket)} as bucket from ${bundlesOf(table)} ${where} order by ${quote(bucket)} limit 1`
  return `with recursive lane as (
  (${next('')})
  union all
  select next.* from lane cross join lateral (${next(`where ${quote(bucket)} > lane.bucket`)}) as next
)
select ${age} from lane cross join lateral (${first(`where bundle.${quote(bucket)} = lane.bucket`)}) as first`
}

/** A FROM clause: the bundles that are due, in order, each with those of its rows that wait. */
export function pendingInBundles(table: LeaseTable, columns: string, rest = ''): string {
  const { bucket, key } = table
  const same = bucket === undefined ? '' : `${quote(bucket)} = bundle.${quote(bucket)} and `
  const order = [...(bucket === undefined ? [] : [quote(bucket)]), 'at', 'id'].join(', ')
  return `(select * from ${bundlesOf(table)} where at <= now() order by ${order}) as bundle
cross join lateral (
  ${columns} from ${quoteQualified(table.schema, table.name)}
  where ${same}${quote(key[0] ?? '')} = any (bundle.rows) and ${pendingWhere(table)} ${rest}
) as waiting`
}

function bundlesOf({ bundles }: LeaseTable): string {
  return bundles === undefined ? '' : quoteQualified(bundles.schema, bundles.name)
}

/** What a claim would take, as `lease/look-sql.ts` has it, in whatever bucket. */
export function pendingWhere(table: LeaseTable): string {
  const until = quote(table.lease.until)
  return [
    `(${table.claimable})`,
    ...notBehind(table),
    ...(table.availableAt === undefined ? [] : [`${quote(table.availableAt)} <= now()`]),
    table.onExpiry === 'claimable' ? `coalesce(${until} <= now(), true)` : `${until} is null`,
    ...(table.exhausted === undefined ? [] : [`(${until} is null or not (${table.exhausted}))`]),
  ].join('\n  and ')
}

/** In the words of the index that claims read. */
function notBehind({ ordering }: LeaseTable): string[] {
  return ordering === undefined ? [] : [`not ${quote(ordering.behind)}`]
}

async function momentColumn(db: Queryable, table: LeaseTable): Promise<string | undefined> {
  if (table.availableAt !== undefined) return table.availableAt
  const [first] = table.order
  if (first === undefined) return undefined
  const inspection = await inspectTable(db, table)
  if (inspection.found !== 'table') throw new Error(`${table.schema}.${table.name} is not a table`)
  const type = inspection.shape.columns.get(first.column)?.type
  return type === 'timestamp with time zone' ? first.column : undefined
}
