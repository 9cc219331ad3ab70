/** Claims of named rows. As they are sent: `claim-rows.sql` in each folder of `docs/sql`. */
import { and, type LeaseStatement, list, type Parameters, parameters, statement } from './statement.ts'
import {
  among,
  answer,
  claimableNow,
  claimTaken,
  idArrays,
  idNames,
  inBucket,
  noneInFlight,
  orderBy,
  orderingOf,
  type TableSql,
} from './table-sql.ts'

/** Claims the rows that the caller names, as far as they can be claimed now: sync claims a given chunk by it. */
export function claimRows(t: TableSql): LeaseStatement {
  const $ = parameters()
  const named = list(idArrays(t, $))
  const where = [inBucket(t, $, 't.'), ...among(t, 'wanted'), `(${and(claimableNow(t), '      ')}) is true`]
  return statement(
    t.table,
    'claim rows',
    $,
    `
with wanted as materialized (
  select * from unnest(${named}) as wanted (${idNames(t)})
),
taken as materialized (
  select ${idNames(t, 't.')}
  from ${t.target} as t
  where ${and([...where, ...isHead(t, $)], '    ')}
  order by ${orderBy(t)}
  for update skip locked
),
${claimTaken(t, $)}
${answer(t, $, {})}`,
  )
}

/** Of an ordering key only the first unfinished row may be claimed, whoever asks for another. */
function isHead(t: TableSql, $: Parameters): string[] {
  if (t.orderingKey === undefined) return []
  const { key, id } = orderingOf(t)
  const sameGroup = t.group === undefined ? '' : `h.${t.group.name} = t.${t.group.name}`
  const unfinished = `(${t.table.ordering?.unfinished ?? 'true'})`
  const where = [inBucket(t, $, 'h.'), sameGroup, `h.${key} = t.${key}`, unfinished]
  return [
    `(t.${key} is null or (
      (select h.${id} from ${t.target} as h where ${and(where, '        ')} order by h.${id} limit 1) = t.${id}
      and ${noneInFlight(t, $, 't')}))`,
  ]
}
