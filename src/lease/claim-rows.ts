import { answer, claimTaken, orderBy } from './claim-parts.ts'
import { and, type LeaseStatement, list, type Parameters, parameters, statement } from './statement.ts'
import { among, claimableNow, inBucket, keyNames, type TableSql } from './table-sql.ts'
import { noneInFlight, orderingOf } from './claim-by-key.ts'

/** Claims the rows that the caller names, as far as they can be claimed now: sync claims a given chunk by it. */
export function claimRows(t: TableSql): LeaseStatement {
  const $ = parameters()
  const arrays = list(t.key.map((k, i) => $(`key${i + 1}`, `${k.type}[]`)))
  const inOrder =
    t.orderingKey === undefined
      ? []
      : [
          `(t.${t.orderingKey.name} is null or ((${headId(t, $)}) = t.${orderingOf(t).id} and ${noneInFlight(t, $, 't')}))`,
        ]
  return statement(
    t.table,
    'claim rows',
    $,
    `
with wanted as materialized (
  select * from unnest(${arrays}) as wanted (${keyNames(t)})
),
taken as materialized (
  select ${keyNames(t, 't.')}
  from ${t.target} as t
  where ${and([inBucket(t, $, 't.'), ...among(t, 'wanted'), `(${and(claimableNow(t), '      ')}) is true`, ...inOrder], '    ')}
  order by ${orderBy(t)}
  for update skip locked
),
${claimTaken(t, $)}
${answer(t, $, {})}`,
  )
}

/** The first unfinished row of the key: no other one may be claimed, whoever asks for it. */
function headId(t: TableSql, $: Parameters): string {
  const { key, id } = orderingOf(t)
  const sameGroup = t.group === undefined ? '' : `h.${t.group.name} = t.${t.group.name}`
  const where = [
    inBucket(t, $, 'h.'),
    sameGroup,
    `h.${key} = t.${key}`,
    `(${t.table.ordering?.unfinished ?? 'true'})`,
  ]
  return `select h.${id} from ${t.target} as h where ${and(where, '      ')} order by h.${id} limit 1`
}
