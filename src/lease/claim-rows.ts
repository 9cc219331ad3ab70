/** Claims of named rows, and of suspects. As they are sent: `claim-rows.sql` and `claim-suspects.sql` in `docs/sql`. */
import type { ClaimStatements } from './claim-in-order.ts'
import {
  and,
  indented,
  type LeaseStatement,
  list,
  type Parameters,
  parameters,
  statement,
} from './statement.ts'
import { SUSPECT_EXPIRIES } from './table.ts'
import {
  among,
  claimableNow,
  idArrays,
  idNames,
  inBucket,
  lease,
  noneInFlight,
  notExcluded,
  orderBy,
  orderingOf,
  rowIdSql,
  suspects,
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
with wanted as materialized (  -- the planner takes any (array(select …)) for ten rows
  select * from unnest(${named}) as wanted (${idNames(t)})
),
taken as materialized (
  select ${idNames(t, 't.')} from ${t.target} as t
  where ${and([...where, ...isHead(t, $)], '    ')}
  for update skip locked
)
${lease(t, $, 'taken')}`,
  )
}

/**
 * Claims suspects: rows under which two processes died (D10). It is sent when the process has room for some, now and then.
 * `alone`: any one of them. Otherwise those that may run in company: not under which more than two processes died, and not
 * at their last attempt, which a death in company must not cost them.
 */
export function claimSuspects(t: TableSql): ClaimStatements | undefined {
  if (t.expiries === undefined) return undefined
  const $ = parameters()
  const claim = statement(
    t.table,
    'claim suspects',
    $,
    `
with next as materialized (  -- the next suspects that are due
${indented(scanSuspects(t, $, t.expiries, { locks: true }))}
)
${lease(t, $, 'next')}`,
  )
  const $find = parameters()
  const find = statement(
    t.table,
    'find suspects',
    $find,
    scanSuspects(t, $find, t.expiries, { locks: false }),
  )
  return { claim, find }
}

/** To lock them, their ids; otherwise the same as texts. */
function scanSuspects(
  t: TableSql,
  $: Parameters,
  expiries: string,
  { locks }: { readonly locks: boolean },
): string {
  const mustBeAlone = [
    `${expiries} > ${SUSPECT_EXPIRIES}`,
    ...(t.exhausted === undefined ? [] : [t.exhausted]),
  ]
  const where = [
    inBucket(t, $, 't.'),
    t.group === undefined ? '' : `t.${t.group.name} = groups.name`,
    ...claimableNow(t),
    suspects(t, true),
    `((select ${$('alone', 'boolean')})  -- false: none that must run alone (more than 2 expiries, or the last attempt)
    or (${mustBeAlone.join(' or ')}) is not true)`,
    ...isHead(t, $),
    notExcluded(t, $, 't.'),
  ]
  const columns = locks ? idNames(t, 't.') : rowIdSql(t, 't.')
  const limit = `limit (select ${$('limit', 'int')})`
  const scan = `select ${columns} from ${t.target} as t
where ${and(where, '  ')}
order by ${orderBy(t, 't.')} ${limit}${locks ? ' for update skip locked' : ''}`
  if (t.group === undefined) return scan
  return `select row.*
from unnest((select ${$('groups', `${t.group.type}[]`)})) as groups (name)
cross join lateral (
${indented(scan)}
) as row
${limit}`
}

/**
 * Of an ordering key only the first unfinished row may be claimed, whoever asks for another. It is found by a range, as in
 * `heads` of `claim-by-key.ts`.
 */
function isHead(t: TableSql, $: Parameters): string[] {
  if (t.orderingKey === undefined) return []
  const { key, id } = orderingOf(t)
  const where = [
    inBucket(t, $, 'h.'),
    t.group === undefined ? '' : `h.${t.group.name} = t.${t.group.name}`,
    `(${t.table.ordering?.unfinished ?? 'true'})`,
    `h.${key} >= t.${key} and h.${key} <= t.${key}`,
  ]
  return [
    `(t.${key} is null or (  -- or the first unfinished row of its key, of which no other row is leased
      (select h.${id} from ${t.target} as h
        where ${and(where, '          ')}
        order by h.${key}, h.${id} limit 1) = t.${id}
      and ${noneInFlight(t, $, 't', '        ')}))`,
  ]
}
