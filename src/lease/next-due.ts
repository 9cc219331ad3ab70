import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { and, type LeaseStatement, parameters, statement } from './statement.ts'
import { inBucket, isOrderedByDue, suspects, type TableSql, withoutKey } from './table-sql.ts'

/**
 * In how many milliseconds the next row will be due that is not yet, so that an idle worker need not poll for it. It is
 * sent when a claim found nothing. Undefined: the table has no due column, or no index leads to the row that is due next.
 */
export function nextDue(t: TableSql): LeaseStatement | undefined {
  const { availableAt, claimable } = t.table
  if (availableAt === undefined) return undefined
  const $ = parameters()
  const at = quote(availableAt)
  const ofGroups = t.group === undefined ? '' : `${t.group.name} = groups.name`
  const conditions = (which: readonly string[]): string =>
    and([inBucket(t, $), ofGroups, `(${claimable})`, ...which, `${at} > now()`], '      ')
  const first = (which: readonly string[]): string => {
    const select = `select ${at} from ${t.target}
    where ${conditions(which)}
    order by ${at} limit 1`
    return ofGroups === ''
      ? `(${select})`
      : `(select min(first.${at}) from groups cross join lateral (\n    ${select}) as first)`
  }
  const searched: string[] = []
  const isInOrder = isOrderedByDue(t)
  if (isInOrder) searched.push(first([...withoutKey(t), suspects(t, false)]))
  // Suspects are few: where their index is in another order, all of them are read.
  if (t.expiries !== undefined && (isInOrder || t.group === undefined))
    searched.push(first([suspects(t, true)]))
  else if (t.expiries !== undefined)
    searched.push(
      `(select min(${at}) from groups, ${t.target}\n    where ${conditions([suspects(t, true)])})`,
    )
  // With groups, a walk by key tells when the next row of a key is due.
  if (t.orderingKey !== undefined && t.group === undefined)
    searched.push(first([`${t.orderingKey.name} is not null`]))
  if (searched.length === 0) return undefined
  const groups =
    t.group === undefined
      ? ''
      : `with groups as materialized (select unnest((select ${$('groups', `${t.group.type}[]`)})) as name)\n`
  return statement(
    t.table,
    'next due',
    $,
    `
${groups}select extract(epoch from nullif(least(  -- one search for each index; infinity is never due
  ${searched.join(',\n  ')}
), 'infinity') - now())::float8 * 1000 as due_in_ms`,
  )
}
