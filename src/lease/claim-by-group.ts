import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { head, orderingOf } from './claim-by-key.ts'
import { answer, bytesBefore, claimTaken, orderBy, scanned, withinBytes } from './claim-parts.ts'
import { and, type LeaseStatement, list, type Parameters, parameters, statement } from './statement.ts'
import {
  among,
  claimableNow,
  inBucket,
  isOrderedByDue,
  isSuspect,
  keyNames,
  millisecondsUntil,
  notExcluded,
  rowIdSql,
  suspects,
  type TableSql,
} from './table-sql.ts'

/**
 * Claims rows of the given groups, from each at most as many as it has room for. Each group is scanned by itself, so
 * that a full or slow one delays no other, however many rows wait in it. Where rows have ordering keys, the heads of a
 * group's keys are found by walking from key to key, as in `claim-by-key.ts`.
 */
export function claimByGroup(t: TableSql): LeaseStatement {
  const $ = parameters()
  const { group, countsExpiries, ordered } = partsOf(t)
  const within = [
    'nth <= room',
    `nth_of_all <= ${$('limit', 'int')}`,
    withinBytes(t, $),
    countsExpiries ? `(not suspect or suspects <= ${$('suspects', 'int')})` : '',
  ]
  return statement(
    t.table,
    'claim by group',
    $,
    `
with ${ordered ? 'recursive ' : ''}${findInGroups(t, $)},
chosen as materialized (
  select *
  from (
    select *, row_number() over (partition by ${group} order by ${orderBy(t)}) as nth,
      row_number() over (order by ${orderBy(t)}) as nth_of_all,
      count(*) filter (where suspect) over (order by ${orderBy(t)} rows unbounded preceding) as suspects${bytesBefore(t, orderBy(t))}
    from found
  ) as ranked
  where ${and(within, '    ')}
  order by ${orderBy(t)}
),
taken as materialized (
  select ${list(t.key.map(({ name }) => `t.${name}`))}, ${isSuspect(t)} as suspect
  from ${t.target} as t
  where ${and([inBucket(t, $, 't.'), ...among(t, 'chosen'), `(${and(claimableNow(t), '      ')}) is true`], '    ')}
  for update skip locked
),
${claimTaken(t, $)}
${answer(t, $, {
  order: `(select json_agg(${rowIdSql(t)}) from chosen)`,
  more: '(select count(*) from found) > (select count(*) from chosen)',
  dueInMs: nextDue(t, $),
  ...(t.table.bytes === undefined
    ? {}
    : {
        bytes: `(select sum(bytes) from chosen where ((${keyNames(t)}) in (select ${keyNames(t)} from taken)) is true)`,
      }),
  suspect: countsExpiries ? `(select ${rowIdSql(t)} from taken where suspect)` : 'null',
  ...(ordered ? { groupCursors: walkedTo(t, $) } : {}),
})}`,
  )
}

/** What a claim by group would take next, without taking it: to find the row that stops a claim. */
export function findByGroup(t: TableSql): LeaseStatement {
  const $ = parameters()
  return statement(
    t.table,
    'find by group',
    $,
    `
with ${partsOf(t).ordered ? 'recursive ' : ''}${findInGroups(t, $)}
select ${rowIdSql(t)} as id, suspect
from found
limit (select ${$('limit', 'int')})`,
  )
}

/** The CTEs up to `found`: what can be claimed of each group, at most as many rows as it has room for. */
function findInGroups(t: TableSql, $: Parameters): string {
  const { countsExpiries, ordered, unordered } = partsOf(t)
  const arrays = [
    $('groups', `${t.group?.type ?? 'text'}[]`),
    $('rooms', 'int[]'),
    ...(ordered ? [$('groupCursors', `${t.orderingKey?.type ?? 'text'}[]`)] : []),
  ]
  return `groups as materialized (
  select *
  from unnest(${list(arrays.map((array) => `(select ${array})`))})
    as groups (name, room${ordered ? ', key_cursor' : ''})
),
next as materialized (
  select ${selected(t, 'row')}, groups.room
  from groups
  cross join lateral (
    ${scan(t, $, [...unordered, suspects(t, false)], `least(groups.room, ${$('limit', 'int')})`)}
  ) as row
),
${
  countsExpiries
    ? `suspect as materialized (          -- at most one, and none while the process runs another
  select ${selected(t, 'row')}, groups.room
  from groups
  cross join lateral (
    ${scan(t, $, [...unordered, suspects(t, true)], '1')}
  ) as row
  limit (select ${$('suspects', 'int')})
),`
    : ''
}
${ordered ? `${walkGroups(t, $)},` : ''}
found as (
  select * from next
  ${countsExpiries ? 'union all select * from suspect' : ''}
  ${ordered ? `union all select ${selected(t, 'walk')}, room from walk where ready` : ''}
)`
}

interface GroupParts {
  readonly group: string
  readonly countsExpiries: boolean
  readonly ordered: boolean
  /** Rows with an ordering key are found by walking the keys. */
  readonly unordered: readonly string[]
}

function partsOf(t: TableSql): GroupParts {
  const ordered = t.orderingKey !== undefined
  return {
    group: t.group?.name ?? '',
    countsExpiries: t.expiries !== undefined,
    ordered,
    unordered: ordered ? [`${t.orderingKey?.name ?? ''} is null`] : [],
  }
}

function selected(t: TableSql, from: string): string {
  const names = new Set([...t.key, ...t.order].map(({ name }) => name))
  if (t.group !== undefined) names.add(t.group.name)
  return list(
    [...names, 'suspect', ...(t.table.bytes === undefined ? [] : ['bytes'])].map((name) => `${from}.${name}`),
  )
}

function scan(t: TableSql, $: Parameters, which: readonly string[], limit: string): string {
  const { group } = partsOf(t)
  const where = [inBucket(t, $), `${group} = groups.name`, ...which, ...claimableNow(t), notExcluded(t, $)]
  return `select ${group}, ${scanned(t)}, ${isSuspect(t)} as suspect
    from ${t.target}
    where ${and(where, '      ')}
    order by ${orderBy(t)}
    limit ${limit}
    for update skip locked`
}

function walkGroups(t: TableSql, $: Parameters): string {
  const { key, id } = orderingOf(t)
  const { group } = partsOf(t)
  const order = [key, id]
  return `walk as (
  select head.*, groups.room, 1 as step, head.ready::int as found
  from groups
  cross join lateral (
    ${head(t, $, `t.${group} = groups.name and t.${key} >= groups.key_cursor`, order)}
  ) as head
  union all
  select head.*, walk.room, walk.step + 1, walk.found + head.ready::int
  from walk
  cross join lateral (
    ${head(t, $, `t.${group} = walk.${group} and t.${key} > walk.${key}`, order)}
  ) as head
  where walk.step < ${$('steps', 'int')} and walk.found < walk.room
)`
}

/** Where the walk of each group stopped before it had seen all keys. */
function walkedTo(t: TableSql, $: Parameters): string {
  return `(select json_object_agg(${partsOf(t).group}, ${orderingOf(t).key}::text)
    from walk where step >= ${$('steps', 'int')} or found >= room)`
}

/** When the next row of these groups will be due that is not yet. */
function nextDue(t: TableSql, $: Parameters): string {
  const { availableAt } = t.table
  if (availableAt === undefined || !isOrderedByDue(t)) return 'null'
  const { group, unordered, ordered } = partsOf(t)
  const at = quote(availableAt)
  const where = [
    inBucket(t, $),
    `${group} = groups.name`,
    ...unordered,
    `(${t.table.claimable})`,
    suspects(t, false),
    `${at} > now()`,
  ]
  const walked = ordered ? `\n      union all select head_due_at from walk` : ''
  return millisecondsUntil(
    'head_due_at',
    `(
      select row.head_due_at from groups cross join lateral (
        select ${at} as head_due_at from ${t.target} where ${and(where, '          ')} order by ${at} limit 1
      ) as row${walked}
    ) as due`,
  )
}
