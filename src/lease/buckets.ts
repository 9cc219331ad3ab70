/**
 * In which buckets something is to be done. One statement concerns all of them, so that an idle worker sends no more of
 * them the more buckets there are. It steps along an index from the first row of a bucket to the first row of the next.
 *
 * Citus has no recursive query over several nodes. There each node reads the first row of each of its buckets, which it
 * finds in the table `citus_buckets`.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { and, type LeaseStatement, list, parameters, statement } from './statement.ts'
import { isOrderedByDue, orderBy, suspects, type TableSql, withoutKey } from './table-sql.ts'

/** Each bucket with rows that wait, and when the first of them is due. */
export function waitingBuckets(t: TableSql): LeaseStatement {
  if (t.buckets !== undefined) return waitingBucketsOnNodes(t, t.buckets)
  const searches = waitingRows(t)
  const found = searches.map(({ name }) => `select * from ${name}`).join(' union all ')
  return statement(
    t.table,
    'waiting buckets',
    parameters(),
    `
with recursive ${searches.map((rows) => walk(t, rows)).join(',\n')}
select bucket,
  ${millisecondsTo('min(due_at)')} as due_in_ms
from (${found}) as found
group by bucket
order by bucket`,
  )
}

/** Each bucket with rows that are leased, whether their leases have expired or not. */
export function leasedBuckets(t: TableSql): LeaseStatement {
  const leased = { name: 'leased', where: [`(${t.table.leased ?? `${t.owner} is not null`})`], order: [] }
  const body =
    t.buckets === undefined
      ? `
with recursive ${walk(t, leased)}
select bucket from leased`
      : `
select buckets.bucket
from ${t.buckets} as buckets
where ${firstOnNode(t, { ...leased, due: 'now()' })} is not null
order by buckets.bucket`
  return statement(t.table, 'leased buckets', parameters(), body)
}

/** The least of no moments is null: nothing waits in that bucket. */
function waitingBucketsOnNodes(t: TableSql, buckets: string): LeaseStatement {
  const moments = waitingRows(t).map((rows) => firstOnNode(t, rows))
  const first = `least(
    ${moments.join(',\n    ')})`
  return statement(
    t.table,
    'waiting buckets',
    parameters(),
    `
select buckets.bucket,
  ${millisecondsTo(first)} as due_in_ms
from ${buckets} as buckets
order by buckets.bucket`,
  )
}

/** Null for infinity, from which PostgreSQL 15 and 16 do not subtract a moment. It is never due. */
function millisecondsTo(moment: string): string {
  return `(extract(epoch from nullif(${moment}, 'infinity')) - extract(epoch from now()))::float8 * 1000`
}

/** When the first of these rows of a bucket is due; null where there is none. */
function firstOnNode(t: TableSql, { where, order, due = 'now()' }: RowsOfBuckets): string {
  const bucket = t.bucket?.name ?? ''
  return `(select ${due} from ${t.target} as t
      where ${and([`t.${bucket} = buckets.bucket`, ...where], '        ')}
      order by ${list([`t.${bucket}`, ...order])} limit 1)`
}

/** A CTE with the first of these rows in each bucket. The order is that of an index: no estimate leads away from it. */
function walk(t: TableSql, { name, where, order, due }: RowsOfBuckets): string {
  const bucket = t.bucket?.name ?? ''
  const columns = [
    bucket === 'bucket' ? bucket : `${bucket} as bucket`,
    ...(due === undefined ? [] : [`${due} as due_at`]),
  ]
  const first = (after: string): string => `select ${list(columns)} from ${t.target}
    where ${and([...where, after], '      ')}
    order by ${list([bucket, ...order])} limit 1`
  return `${name} as (
  (${first('')})
  union all
  select next.* from ${name} cross join lateral (  -- one index probe finds the first row of the next bucket
    ${first(`${bucket} > ${name}.bucket`)}) as next
)`
}

interface RowsOfBuckets {
  readonly name: string
  readonly where: readonly string[]
  /** The columns of the index after the bucket. */
  readonly order: readonly string[]
  /** When the first row of a bucket is due. */
  readonly due?: string
}

/** The rows of each index along which claims find them. Where the index does not tell when they are due, they are due now. */
function waitingRows(t: TableSql): RowsOfBuckets[] {
  const { claimable, availableAt } = t.table
  const dueAt = availableAt === undefined ? 'now()' : quote(availableAt)
  const order = [...(t.group === undefined ? [] : [t.group.name]), orderBy(t)]
  const due = t.group === undefined && isOrderedByDue(t) ? dueAt : 'now()'
  const rows: RowsOfBuckets[] = [
    {
      name: t.orderingKey === undefined ? 'waiting' : 'without_key',
      where: [...withoutKey(t), `(${claimable})`, suspects(t, false)],
      order,
      due,
    },
  ]
  if (t.expiries !== undefined)
    rows.push({ name: 'suspects', where: [`(${claimable})`, suspects(t, true)], order, due })
  if (t.orderingKey === undefined) return rows
  const key = t.orderingKey.name
  const ids = t.idColumns.map(({ name }) => name)
  const keyed = { name: 'with_key', where: [`${key} is not null`, `(${claimable})`] }
  return t.group === undefined
    ? [...rows, { ...keyed, order: t.arrival.map(({ name }) => name), due: dueAt }]
    : [...rows, { ...keyed, order: [t.group.name, key, ...ids], due: 'now()' }]
}
