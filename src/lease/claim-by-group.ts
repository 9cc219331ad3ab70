/**
 * Claims by group. They are easiest to read as they are sent: `claim-by-group.sql` in `docs/sql/sync_jobs`, and
 * `claim-keys-by-group.sql` in `docs/sql/webhook_outbox`.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import type { ClaimStatements } from './claim-in-order.ts'
import { and, list, type Parameters, parameters, statement } from './statement.ts'
import {
  among,
  bytesColumn,
  claimableNow,
  fitting,
  foundIn,
  inBucket,
  lease,
  leaseAsCte,
  millisecondsUntil,
  noneInFlight,
  notExcluded,
  orderBy,
  orderingOf,
  returned,
  rowIdSql,
  scannedColumns,
  suspects,
  type TableSql,
  withoutKey,
} from './table-sql.ts'

/**
 * Claims rows of the given groups, from each at most as many as it has room for. Each group is scanned by itself, so
 * that a full or slow one delays no other, however many rows wait in it.
 */
export function claimByGroup(t: TableSql): ClaimStatements {
  const $ = parameters()
  const source = `next as materialized (
  ${scanGroups(t, $)}
)`
  const claim = statement(
    t.table,
    'claim by group',
    $,
    `
with ${source}${t.table.bytes === undefined ? '' : `,\n${fitting($, 'next', orderBy(t))}`},
${chosen(t, $, orderBy(t))}
${lease(t, $, 'chosen', foundIn(t, 'next'))}`,
  )
  const $find = parameters()
  const find = statement(
    t.table,
    'find by group',
    $find,
    `
select ${rowIdSql(t)} from (
  ${scanGroups(t, $find, false)}
) as next`,
  )
  return { claim, find }
}

/** The rows without an ordering key, in the order of the table within their group. */
function scanGroups(t: TableSql, $: Parameters, locks = true): string {
  const group = groupOf(t)
  const where = [
    inBucket(t, $),
    `${group} = groups.name`,
    ...withoutKey(t),
    ...claimableNow(t),
    suspects(t, false),
    notExcluded(t, $),
  ]
  return `select row.*
  from unnest((select ${$('groups', `${t.group?.type ?? 'text'}[]`)}), (select ${$('rooms', 'int[]')})) as groups (name, room)
  cross join lateral (
    select ${list([...scannedColumns(t), ...bytesColumn(t)])}
    from ${t.target}
    where ${and(where, '      ')}
    order by ${orderBy(t)}
    limit least(groups.room, ${$('limit', 'int')})${locks ? '\n    for update skip locked' : ''}
  ) as row`
}

/** The CTE `chosen`: the first of the rows that were found, as many as there is room for. */
function chosen(t: TableSql, $: Parameters, order: string): string {
  return `chosen as materialized (
  select * from ${t.table.bytes === undefined ? 'next' : 'fitting'} order by ${order} limit (select ${$('limit', 'int')})
)`
}

/**
 * Claims the heads of ordering keys of the given groups, by walking from key to key in the index, from where the last walk
 * of the group has stopped. It also says where the walk of each group stops now.
 */
export function claimKeysByGroup(t: TableSql): ClaimStatements {
  const $ = parameters()
  const { id, key } = orderingOf(t)
  const isSized = t.table.bytes !== undefined
  const taken = [inBucket(t, $, 't.'), ...among(t, 'chosen'), `(${and(claimableNow(t), '      ')}) is true`]
  const names = returned(t).columns.map((_, i) => `c${i + 1}`)
  const found = foundIn(t, 'next')
  const claim = statement(
    t.table,
    'claim keys by group',
    $,
    `
with recursive ${walk(t, $)},
next as materialized (
  select * from walk where ready
)${isSized ? `,\n${fitting($, 'next', id)}` : ''},
${chosen(t, $, id)},
taken as materialized (
  select t.${id}
  from ${t.target} as t
  where ${and(taken, '    ')}
  for update skip locked
),
${leaseAsCte(t, $, 'taken', { names: [...names, ...found.map(() => 'found'), 'of_group'], more: [...found, `t.${groupOf(t)}`] })}
select claimed.*, groups.name,
  (select ${key}::text from walk where walk.${groupOf(t)} = groups.name and (step >= ${$('steps', 'int')} or found >= room) limit 1),
  ${t.table.availableAt === undefined ? 'null' : millisecondsUntil('row_due_at', 'walk')}
from groups left join claimed on claimed.of_group = groups.name`,
  )
  const $find = parameters()
  const find = statement(
    t.table,
    'find keys by group',
    $find,
    `
with recursive ${walk(t, $find)}
select ${rowIdSql(t)} from walk where ready order by walk.${id} limit (select ${$find('limit', 'int')})`,
  )
  return { claim, find }
}

/** The CTEs `groups` and `walk`: from key to key within each group, until there are as many heads as it has room for. */
function walk(t: TableSql, $: Parameters): string {
  const { key, id } = orderingOf(t)
  const group = groupOf(t)
  const due = t.table.availableAt === undefined ? [] : [`${quote(t.table.availableAt)} as row_due_at`]
  const claimable = [...claimableNow(t), suspects(t, false), notExcluded(t, $)]
  const arrays = [
    $('groups', `${t.group?.type ?? 'text'}[]`),
    $('rooms', 'int[]'),
    $('groupCursors', `${t.orderingKey?.type ?? 'text'}[]`),
  ].map((array) => `(select ${array})`)
  const unfinished = [
    inBucket(t, $, 'o.'),
    `o.${key} is not null`,
    `(${t.table.ordering?.unfinished ?? 'true'})`,
  ]
  const head = (
    which: string,
  ): string => `select ${list([`o.${id}`, `o.${group}`, `o.${key}`, ...due, ...bytesColumn(t)])},
      (${and(claimable, '        ')}) is true
        and ${noneInFlight(t, $, 'o')} as ready
    from ${t.target} as o
    where ${and([...unfinished, which], '      ')}
    order by o.${group}, o.${key}, o.${id} limit 1`
  return `groups as materialized (
  select * from unnest(${list(arrays)}) as groups (name, room, key_cursor)
),
walk as (
  select head.*, groups.room, 1 as step, head.ready::int as found
  from groups cross join lateral (  -- the first key from the cursor on
    ${head(`o.${group} = groups.name and o.${key} >= groups.key_cursor`)}
  ) as head
  union all
  select head.*, walk.room, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (    -- the next key
    ${head(`o.${group} = walk.${group} and o.${key} > walk.${key}`)}
  ) as head
  where walk.step < ${$('steps', 'int')} and walk.found < walk.room
)`
}

/** The column that names the group, which a table that is claimed by group has. */
function groupOf(t: TableSql): string {
  return t.group?.name ?? ''
}
