/**
 * Claims by group. They are easiest to read as they are sent: `claim-by-group.sql` in `docs/sql/sync_jobs`, and
 * `claim-keys-by-group.sql` in `docs/sql/webhook_outbox`.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import type { ClaimStatements } from './claim-in-order.ts'
import { and, list, type Parameters, parameters, statement, wrapped } from './statement.ts'
import {
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
  rowIdSql,
  runningTotal,
  scannedColumns,
  suspects,
  type TableSql,
  taken,
  withoutKey,
} from './table-sql.ts'

/**
 * Claims rows of the given groups, from each at most as many as it has room for. Each group is scanned by itself, so
 * that a full or slow one delays no other, however many rows wait in it.
 */
export function claimByGroup(t: TableSql): ClaimStatements {
  const $ = parameters()
  const isSized = t.table.bytes !== undefined
  const claim = statement(
    t.table,
    'claim by group',
    $,
    `
with next as materialized (  -- of each group the next rows that are due, as many as it has room for; all are locked
  ${scanGroups(t, $, { locks: true })}
)${isSized ? `,\n${fitting($, 'next', orderBy(t))}` : ''},
chosen as materialized (
  select * from ${isSized ? 'fitting' : 'next'} order by ${orderBy(t)} limit (select ${$('limit', 'int')})
)
${lease(t, $, 'chosen', foundIn(t, 'next'))}`,
  )
  const $find = parameters()
  const find = statement(
    t.table,
    'find by group',
    $find,
    `
select ${rowIdSql(t)} from (
  ${scanGroups(t, $find, { locks: false })}
) as next
order by ${orderBy(t, 'next.')} limit (select ${$find('limit', 'int')})`,
  )
  return { claim, find }
}

/** The rows without an ordering key, in the order of the table within their group. */
function scanGroups(t: TableSql, $: Parameters, { locks }: { readonly locks: boolean }): string {
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
  from unnest((select ${$('groups', `${t.group?.type ?? 'text'}[]`)}), (select ${$('rooms', 'int[]')})) as groups (name, room) cross join lateral (
    select ${list([...scannedColumns(t), ...(locks ? bytesColumn(t) : [])])} from ${t.target}
    where ${and(where, '      ')}
    order by ${orderBy(t)} limit least(groups.room, ${$('limit', 'int')})${locks ? ' for update skip locked' : ''}
  ) as row`
}

/**
 * Claims the heads of ordering keys of the given groups, by walking from key to key in the index, from where the last walk
 * of the group has stopped. It also says where the walk of each group stops now.
 */
export function claimKeysByGroup(t: TableSql): ClaimStatements {
  const $ = parameters()
  const { id, key } = orderingOf(t)
  const group = groupOf(t)
  const total = t.table.bytes === undefined ? '' : `, ${runningTotal(id)}`
  const claim = statement(
    t.table,
    'claim keys by group',
    $,
    `
with recursive ${walk(t, $, bytesColumn(t))},
next as materialized (
  select *${total} from walk where ready
),
${taken(t, $, 'next')},
${leaseAsCte(t, $, 'taken', [...foundIn(t, 'next'), `t.${group} as of_group`])}
select claimed.*, groups.name,
  (select ${key}::text from walk
    where walk.${group} = groups.name and (step >= ${$('steps', 'int')} or found >= room) limit 1) as stopped_at,
  ${t.table.availableAt === undefined ? 'null' : millisecondsUntil('row_due_at', 'walk')} as due_in_ms
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
function walk(t: TableSql, $: Parameters, bytes: readonly string[] = []): string {
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
  ): string => `select ${wrapped([`o.${id}`, `o.${group}`, `o.${key}`, ...due, ...bytes], ', ', '      ')},
      (${and(claimable, '        ')}) is true
        and ${noneInFlight(t, $, 'o', '          ')} as ready
    from ${t.target} as o
    where ${and([...unfinished, which], '      ')}
    order by o.${group}, o.${key}, o.${id} limit 1`
  return `groups as materialized (
  select * from unnest(${list(arrays)}) as groups (name, room, key_cursor)
),
walk as (  -- the first unfinished row of each key, and whether it is ready to be claimed
  select head.*, groups.room, 1 as step, head.ready::int as found
  from groups cross join lateral (  -- the first key from the cursor on
    ${head(`o.${group} = groups.name and o.${key} >= groups.key_cursor`)}
  ) as head
  union all
  select head.*, walk.room, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (  -- the next key
    ${head(`o.${group} = walk.${group} and o.${key} > walk.${key}`)}
  ) as head
  where walk.step < ${$('steps', 'int')} and walk.found < walk.room
)`
}

/** The column that names the group, which a table that is claimed by group has. */
function groupOf(t: TableSql): string {
  return t.group?.name ?? ''
}
