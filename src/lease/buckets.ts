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
  const walks = waitingRows(t).map((rows, i) => walk(t, `walk${i + 1}`, rows))
  return statement(
    t.table,
    'waiting buckets',
    parameters(),
    `
with recursive ${walks.join(',\n')}
select bucket, extract(epoch from min(due_at) - now())::float8 * 1000 as due_in_ms
from (${walks.map((_, i) => `select * from walk${i + 1}`).join(' union all ')}) as walked
group by bucket
order by bucket`,
  )
}

/** Each bucket with rows that are leased, whether their leases have expired or not. */
export function leasedBuckets(t: TableSql): LeaseStatement {
  const where = [`(${t.table.leased ?? `${t.owner} is not null`})`]
  if (t.buckets !== undefined)
    return statement(
      t.table,
      'leased buckets',
      parameters(),
      `
select buckets.bucket
from ${t.buckets} as buckets
where ${firstOnNode(t, { where, order: [], due: 'now()' })} is not null
order by buckets.bucket`,
    )
  return statement(
    t.table,
    'leased buckets',
    parameters(),
    `
with recursive ${walk(t, 'walk', { where, order: [], due: 'now()' })}
select bucket from walk`,
  )
}

/** The least of no moments is null: nothing waits in that bucket. */
function waitingBucketsOnNodes(t: TableSql, buckets: string): LeaseStatement {
  const moments = waitingRows(t).map((rows) => firstOnNode(t, rows))
  return statement(
    t.table,
    'waiting buckets',
    parameters(),
    `
select buckets.bucket, extract(epoch from least(
  ${moments.join(',\n  ')}
) - now())::float8 * 1000 as due_in_ms
from ${buckets} as buckets
order by buckets.bucket`,
  )
}

/** When the first of these rows of a bucket is due; null where there is none. */
function firstOnNode(t: TableSql, { where, order, due }: WaitingRows): string {
  const bucket = t.bucket?.name ?? ''
  return `(select ${due} from ${t.target} as t
    where ${and([`t.${bucket} = buckets.bucket`, ...where], '      ')}
    order by ${list([`t.${bucket}`, ...order])} limit 1)`
}

/** A CTE with the first of these rows in each bucket. The order is that of an index: no estimate leads away from it. */
function walk(t: TableSql, name: string, { where, order, due }: WaitingRows): string {
  const bucket = t.bucket?.name ?? ''
  const first = (after: string): string => `select ${bucket} as bucket, ${due} as due_at
    from ${t.target}
    where ${and([...where, after], '      ')}
    order by ${list([bucket, ...order])} limit 1`
  return `${name} as (
  (${first('')})
  union all
  select next.*
  from ${name} cross join lateral (
    ${first(`${bucket} > ${name}.bucket`)}
  ) as next
)`
}

interface WaitingRows {
  readonly where: readonly string[]
  /** The columns of the index after the bucket. */
  readonly order: readonly string[]
  /** When the first row of a bucket is due; now, where the index does not tell. */
  readonly due: string
}

/** The rows of each index along which claims find them. */
function waitingRows(t: TableSql): WaitingRows[] {
  const { claimable, availableAt } = t.table
  const dueAt = availableAt === undefined ? 'now()' : quote(availableAt)
  const order = [...(t.group === undefined ? [] : [t.group.name]), orderBy(t)]
  const due = t.group === undefined && isOrderedByDue(t) ? dueAt : 'now()'
  const which = t.expiries === undefined ? [''] : [suspects(t, false), suspects(t, true)]
  const unkeyed = which.map((one) => ({ where: [...withoutKey(t), `(${claimable})`, one], order, due }))
  if (t.orderingKey === undefined) return unkeyed
  const key = t.orderingKey.name
  const keyed = { where: [`${key} is not null`, `(${claimable})`] }
  return [
    ...unkeyed,
    t.group === undefined
      ? { ...keyed, order: t.arrival.map(({ name }) => name), due: dueAt }
      : { ...keyed, order: [t.group.name, key, ...t.idColumns.map(({ name }) => name)], due: 'now()' },
  ]
}
