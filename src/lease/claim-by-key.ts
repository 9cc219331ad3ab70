/**
 * Claims by ordering key. They are easiest to read as they are sent: `claim-next-of-keys.sql` and
 * `claim-arrived-keys.sql` in `docs/sql/outbox`.
 *
 * Two claims whose snapshots differ (a late commit, a replay) may pick two rows of one key. The unique index on rows in
 * flight refuses the second, and the pipeline of that claim is repeated.
 */
import type { ClaimStatements } from './claim-in-order.ts'
import { and, list, type Parameters, parameters, statement } from './statement.ts'
import {
  among,
  bytesColumn,
  claimableNow,
  cursorText,
  fitting,
  foundIn,
  inBucket,
  lease,
  leaseAsCte,
  noneInFlight,
  notExcluded,
  orderingOf,
  returned,
  rowIdSql,
  suspects,
  type TableSql,
} from './table-sql.ts'

/** Claims the heads of the given keys: the worker knows of which keys it has settled a row. */
export function claimNextOfKeys(t: TableSql): ClaimStatements {
  const keys = ($: Parameters): string =>
    `unnest((select ${$('keys', `${t.orderingKey?.type ?? 'text'}[]`)})) as wanted (${orderingOf(t).key})`
  const $ = parameters()
  const claim = statement(
    t.table,
    'claim next of keys',
    $,
    `
with ${heads(t, $, keys($))},
${taken(t, $)}
${lease(t, $, 'taken', foundIn(t, 'heads'))}`,
  )
  const $find = parameters()
  const find = statement(
    t.table,
    'find next of keys',
    $find,
    findHeads(t, `with ${heads(t, $find, keys($find))}`, $find),
  )
  return { claim, find }
}

/**
 * Claims the heads of the keys to which the next rows belong that have become due, from the cursor on: however many keys
 * wait, and however many rows wait in a key. It also says how many rows it read, and to where, and which is the first of
 * them for whose head there was no room.
 */
export function claimArrivedKeys(t: TableSql): ClaimStatements {
  const keys = `(select distinct ${orderingOf(t).key} from arrived) as wanted`
  const $ = parameters()
  const places = t.arrival.map((column) => cursorText(column)).join(` || '|' || `)
  const { id, key } = orderingOf(t)
  const noRoom = `select ${key} from heads where ${id} > (select ${id} from taken order by ${id} desc limit 1)`
  const forwards = list(t.arrival.map(({ name }) => name))
  const backwards = list(t.arrival.map(({ name }) => `${name} desc`))
  const names = returned(t).columns.map((_, i) => `c${i + 1}`)
  const more = foundIn(t, 'heads')
  const claim = statement(
    t.table,
    'claim arrived keys',
    $,
    `
with ${arrived(t, $)},
${heads(t, $, keys)},
${taken(t, $)},
${leaseAsCte(t, $, 'taken', { names: [...names, ...more.map(() => 'found')], more })}
select claimed.*, scan.*
from (
  select (select count(*)::int from arrived) as read,
    (select ${places} from arrived order by ${backwards} limit 1) as read_to,
    (select ${places} from arrived where ${key} in (${noRoom}) order by ${forwards} limit 1) as no_room_from
) as scan left join claimed on true`,
  )
  const $find = parameters()
  const find = statement(
    t.table,
    'find arrived keys',
    $find,
    findHeads(t, `with ${arrived(t, $find)},\n${heads(t, $find, keys)}`, $find),
  )
  return { claim, find }
}

/** The next rows that are due, first of their key or not. */
function arrived(t: TableSql, $: Parameters): string {
  const { key } = orderingOf(t)
  const columns = list(t.arrival.map(({ name }) => name))
  const cursor = list(t.arrival.map(({ type }, i) => `(select ${$(`cursor${i + 1}`, type)})`))
  const where = [inBucket(t, $), `${key} is not null`, ...claimableNow(t), `(${columns}) >= (${cursor})`]
  return `arrived as materialized (           -- the next rows that are due, first of their key or not
  select ${columns}, ${key}
  from ${t.target}
  where ${and(where, '    ')}
  order by ${columns}
  limit (select ${$('rows', 'int')})
)`
}

/**
 * The first unfinished row of each key, if it can be claimed and no row of the key is in flight. Written as a range: with
 * `=`, the primary key has the order of a key's rows too, and where most rows were of one key when the table was analysed,
 * the planner walks along it, past all finished rows.
 */
function heads(t: TableSql, $: Parameters, wanted: string): string {
  const { key, id } = orderingOf(t)
  const claimable = [...claimableNow(t), suspects(t, false), notExcluded(t, $)]
  const bytes = bytesColumn(t)
  return `heads as materialized (
  select head.*
  from ${wanted}
  cross join lateral (                -- the first unfinished row of the key
    select ${list([`o.${id}`, `o.${key}`, ...bytes])},
      (${and(claimable, '        ')}) is true as claimable
    from ${t.target} as o
    where ${and([inBucket(t, $, 'o.'), `(${t.table.ordering?.unfinished ?? 'true'})`, `o.${key} >= wanted.${key}`, `o.${key} <= wanted.${key}`], '      ')}
    order by o.${key}, o.${id} limit 1
  ) as head
  where head.claimable and ${noneInFlight(t, $, 'head')}
)`
}

/** The heads that there is room for, each locked: what has changed since they were found is checked once more. */
function taken(t: TableSql, $: Parameters): string {
  const { id } = orderingOf(t)
  const isSized = t.table.bytes !== undefined
  const where = [
    inBucket(t, $, 't.'),
    ...among(t, isSized ? 'fitting' : 'heads'),
    `(${and(claimableNow(t), '      ')}) is true`,
  ]
  return `${isSized ? `${fitting($, 'heads', id)},\n` : ''}taken as materialized (
  select t.${id}
  from ${t.target} as t
  where ${and(where, '    ')}
  order by t.${id}
  limit (select ${$('limit', 'int')})
  for update skip locked
)`
}

/** The ids as texts, in the order of the ids: a bare name in ORDER BY would be the text, where 10 comes before 9. */
function findHeads(t: TableSql, ctes: string, $: Parameters): string {
  return `
${ctes}
select ${rowIdSql(t)} from heads order by heads.${orderingOf(t).id} limit (select ${$('limit', 'int')})`
}
