/**
 * Claims by group. They are easiest to read as they are sent: `claim-by-group.sql` and `find-by-group.sql`, in
 * `docs/sql/sync_jobs` without ordering keys and in `docs/sql/webhook_outbox` with them.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { head, queued } from './claim-by-key.ts'
import { and, type LeaseStatement, list, type Parameters, parameters, statement } from './statement.ts'
import {
  among,
  answer,
  bytesBefore,
  claimableNow,
  claimTaken,
  idNames,
  inBucket,
  isOrderedByDue,
  isSuspect,
  millisecondsUntil,
  notExcluded,
  orderBy,
  orderingOf,
  rowIdSql,
  scanned,
  suspectFacts,
  suspectLoad,
  suspects,
  suspectsBefore,
  type TableSql,
  withinBytes,
  withinSuspects,
  withoutKey,
} from './table-sql.ts'

/**
 * Claims rows of the given groups, from each at most as many as it has room for. Each group is scanned by itself, so
 * that a full or slow one delays no other, however many rows wait in it. Where rows have ordering keys, the heads of a
 * group's keys are found by walking from key to key in the index.
 */
export function claimByGroup(t: TableSql): LeaseStatement {
  const $ = parameters()
  const within = [
    'nth <= room',
    `nth_of_all <= ${$('limit', 'int')}`,
    withinBytes(t, $),
    withinSuspects(t, $),
  ]
  const claimed = `((${idNames(t)}) in (select ${idNames(t)} from taken)) is true`
  return statement(
    t.table,
    'claim by group',
    $,
    `
with ${findInGroups(t, $)},
chosen as materialized (
  select *
  from (
    select *, row_number() over (partition by ${groupOf(t)} order by ${orderBy(t)}) as nth,
      row_number() over (order by ${orderBy(t)}) as nth_of_all,
      ${suspectsBefore(orderBy(t))}${bytesBefore(t, orderBy(t))}
    from found
  ) as ranked
  where ${and(within, '    ')}
  order by ${orderBy(t)}
),
taken as materialized (
  select ${idNames(t, 't.')}, ${isSuspect(t)} as suspect, ${suspectLoad(t)}
  from ${t.target} as t
  where ${and([inBucket(t, $, 't.'), ...among(t, 'chosen'), `(${and(claimableNow(t), '      ')}) is true`], '    ')}
  for update skip locked
),
${claimTaken(t, $)}
${answer(t, $, {
  order: `(select json_agg(${rowIdSql(t)}) from chosen)`,
  more: '(select count(*) from found) > (select count(*) from chosen)',
  dueInMs: nextDue(t, $),
  ...(t.table.bytes === undefined ? {} : { bytes: `(select sum(bytes) from chosen where ${claimed})` }),
  ...suspectFacts(t),
  ...(t.orderingKey === undefined ? {} : { groupCursors: walkedTo(t, $) }),
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
with ${findInGroups(t, $)}
select ${rowIdSql(t)} as id, suspect
from found
limit (select ${$('limit', 'int')})`,
  )
}

/** The CTEs up to `found`: what can be claimed of each group, at most as many rows as it has room for. */
function findInGroups(t: TableSql, $: Parameters): string {
  const isOrdered = t.orderingKey !== undefined
  const countsExpiries = t.expiries !== undefined
  const arrays = [
    $('groups', `${t.group?.type ?? 'text'}[]`),
    $('rooms', 'int[]'),
    ...(isOrdered ? [$('groupCursors', `${t.orderingKey?.type ?? 'text'}[]`)] : []),
  ]
  return `${isOrdered ? 'recursive ' : ''}groups as materialized (
  select * from unnest(${list(arrays.map((array) => `(select ${array})`))})
    as groups (name, room${isOrdered ? ', key_cursor' : ''})
),
next as materialized (
  select ${selected(t, 'row')}, groups.room
  from groups cross join lateral (
    ${scan(t, $, suspects(t, false), `least(groups.room, ${$('limit', 'int')})`)}
  ) as row
),
${
  countsExpiries
    ? `suspect as materialized (          -- as many as the process has room for
  select ${selected(t, 'row')}, groups.room
  from groups cross join lateral (
    ${scan(t, $, suspects(t, true), `least(groups.room, ${$('suspects', 'int')})`)}
  ) as row
  limit (select ${$('suspects', 'int')})
),`
    : ''
}
${isOrdered ? `${queued(t, $)},\n${walkGroups(t, $)},` : ''}
found as (
  select * from next
  ${countsExpiries ? 'union all select * from suspect' : ''}
  ${isOrdered ? `union all select ${selected(t, 'walk')}, room from walk where ready` : ''}
)`
}

/** The column that names the group, which a table that is claimed by group has. */
function groupOf(t: TableSql): string {
  return t.group?.name ?? ''
}

function selected(t: TableSql, from: string): string {
  const names = new Set([...t.idColumns, ...t.order].map(({ name }) => name))
  const bytes = t.table.bytes === undefined ? [] : ['bytes']
  return list([...names.add(groupOf(t)), 'suspect', 'load', ...bytes].map((name) => `${from}.${name}`))
}

/** Rows without an ordering key, along the claim index of the group. */
function scan(t: TableSql, $: Parameters, which: string, limit: string): string {
  const where = [inBucket(t, $), `${groupOf(t)} = groups.name`, ...withoutKey(t), which]
  return `select ${groupOf(t)}, ${scanned(t)}, ${isSuspect(t)} as suspect, ${suspectLoad(t)}
    from ${t.target}
    where ${and([...where, ...claimableNow(t), notExcluded(t, $)], '      ')}
    order by ${orderBy(t)} limit ${limit}
    for update skip locked`
}

/** The CTE `walk`: from key to key within each group, until there are as many heads as the group has room for. */
function walkGroups(t: TableSql, $: Parameters): string {
  const { key } = orderingOf(t)
  const group = groupOf(t)
  return `walk as (
  select head.*, groups.room, 1 as step, head.ready::int as found
  from groups cross join lateral (  -- the first key from the cursor on
    ${head(t, `${group} = groups.name and ${key} >= groups.key_cursor`)}
  ) as head
  union all
  select head.*, walk.room, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (    -- the next key
    ${head(t, `queued.${group} = walk.${group} and queued.${key} > walk.${key}`)}
  ) as head
  where walk.step < ${$('steps', 'int')} and walk.found < walk.room
)`
}

/** Where the walk of each group stopped before it had seen all keys. */
function walkedTo(t: TableSql, $: Parameters): string {
  return `(select json_object_agg(${groupOf(t)}, ${orderingOf(t).key}::text)
    from walk where step >= ${$('steps', 'int')} or found >= room)`
}

/** When the next row of these groups will be due that is not yet. Suspects have an index of their own. */
function nextDue(t: TableSql, $: Parameters): string {
  const { availableAt, claimable } = t.table
  if (availableAt === undefined || !isOrderedByDue(t)) return 'null'
  const at = quote(availableAt)
  const where = [inBucket(t, $), `${groupOf(t)} = groups.name`, ...withoutKey(t), `(${claimable})`]
  const first = (which: string): string =>
    `(select ${at} from ${t.target}
        where ${and([...where, which, `${at} > now()`], '          ')} order by ${at} limit 1)`
  const moments = t.expiries === undefined ? [''] : [suspects(t, false), suspects(t, true)]
  const walked = t.orderingKey === undefined ? '' : '\n      union all select row_due_at from walk'
  return millisecondsUntil(
    'row_due_at',
    `(
      select least(${moments.map(first).join(',\n        ')}) as row_due_at from groups${walked}
    ) as due`,
  )
}
