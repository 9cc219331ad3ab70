import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { and, type LeaseStatement, parameters, statement } from './statement.ts'
import { inBucket, isOrderedByDue, suspects, type TableSql, withoutKey } from './table-sql.ts'

/**
 * In how many milliseconds the next row will be due that is not yet, so that an idle worker need not poll for it. It is
 * sent when a claim found nothing. Undefined: the table has no due column, or no index leads to the row that is due next.
 */
export function nextDue(t: TableSql): LeaseStatement | undefined {
  const { availableAt, claimable } = t.table
  if (availableAt === undefined || (!isOrderedByDue(t) && t.orderingKey === undefined)) return undefined
  const $ = parameters()
  const at = quote(availableAt)
  const ofGroups = t.group === undefined ? '' : `${t.group.name} = groups.name`
  const first = (which: readonly string[]): string => {
    const where = [inBucket(t, $), ofGroups, `(${claimable})`, ...which, `${at} > now()`]
    const select = `select ${at} from ${t.target}
    where ${and(where, '      ')} order by ${at} limit 1`
    return ofGroups === ''
      ? `(${select})`
      : `(select min(first.${at}) from groups cross join lateral (\n    ${select}\n  ) as first)`
  }
  const unkeyed =
    t.expiries === undefined ? [withoutKey(t)] : [[...withoutKey(t), suspects(t, false)], [suspects(t, true)]]
  // With groups, a walk by key tells when the next row of a key is due.
  const keyed =
    t.orderingKey === undefined || t.group !== undefined ? [] : [[`${t.orderingKey.name} is not null`]]
  const searched = [...(isOrderedByDue(t) ? unkeyed : []), ...keyed]
  const groups =
    t.group === undefined
      ? ''
      : `with groups as materialized (select unnest((select ${$('groups', `${t.group.type}[]`)})) as name)\n`
  return statement(
    t.table,
    'next due',
    $,
    `
${groups}select extract(epoch from nullif(least(
  ${searched.map(first).join(',\n  ')}
), 'infinity') - now())::float8 * 1000 as due_in_ms`,
  )
}
