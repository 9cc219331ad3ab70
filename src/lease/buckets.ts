/**
 * In which buckets something is to be done. One statement concerns all of them, so that an idle worker sends no more of
 * them the more buckets there are. It steps along an index from the first row of a bucket to the first row of the next.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { and, type LeaseStatement, list, parameters, statement } from './statement.ts'
import { isOrderedByDue, orderBy, suspects, type TableSql, TOKEN_MARK, withoutKey } from './table-sql.ts'

/** Each bucket with rows that wait, and when the first of them is due. */
export function waitingBuckets(t: TableSql): LeaseStatement {
  const $ = parameters()
  const bucket = t.bucket?.name ?? ''
  const walks = waitingRows(t).map(({ where, order, due }, i) => {
    const first = (after: string): string => `select ${bucket} as bucket, ${due} as due_at
    from ${t.target}
    where ${and([...where, after], '      ')}
    order by ${list([bucket, ...order])} limit 1`
    return `walk${i + 1} as (
  (${first('')})
  union all
  select next.*
  from walk${i + 1} cross join lateral (
    ${first(`${bucket} > walk${i + 1}.bucket`)}
  ) as next
)`
  })
  return statement(
    t.table,
    'waiting buckets',
    $,
    `
with recursive ${walks.join(',\n')}
select bucket, extract(epoch from min(due_at) - now())::float8 * 1000 as due_in_ms
from (${walks.map((_, i) => `select * from walk${i + 1}`).join(' union all ')}) as walked
group by bucket
order by bucket`,
  )
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

/** Each bucket in which leases have expired or, with an owner, in which that owner holds leases. */
export function leasedBuckets(t: TableSql): LeaseStatement {
  const $ = parameters()
  const owner = $('ownedBy', 'text')
  const heldBy = t.token === undefined ? `regexp_replace(${t.owner}, '${TOKEN_MARK}[0-9]+$', '')` : t.owner
  const which = `case when ${owner} is null then ${t.until} <= now() else ${heldBy} = ${owner} end`
  return statement(
    t.table,
    'leased buckets',
    $,
    `
select distinct ${t.bucket?.name ?? ''} as bucket
from ${t.target}
where ${and([`(${t.table.leased ?? `${t.owner} is not null`})`, which], '  ')}
order by 1`,
  )
}
