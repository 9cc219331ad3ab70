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
  bytesColumn,
  claimableNow,
  cursorText,
  foundIn,
  inBucket,
  lease,
  leaseAsCte,
  noneInFlight,
  notExcluded,
  orderingOf,
  rowIdSql,
  runningTotal,
  suspects,
  type TableSql,
  taken,
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
with ${heads(t, $, keys($), bytesColumn(t))},
${taken(t, $, 'heads')}
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
  const { id, key } = orderingOf(t)
  const keys = `(select distinct ${key} from arrived) as wanted`
  const $ = parameters()
  const place = t.arrival.map((column) => cursorText(column)).join(` || '|' || `)
  const forwards = list(t.arrival.map(({ name }) => name))
  const backwards = list(t.arrival.map(({ name }) => `${name} desc`))
  const beyondTaken = `select ${key} from heads where ${id} > (select ${id} from taken order by ${id} desc limit 1)`
  const claim = statement(
    t.table,
    'claim arrived keys',
    $,
    `
with ${arrived(t, $)},
${heads(t, $, keys, bytesColumn(t))},
${taken(t, $, 'heads')},
${leaseAsCte(t, $, 'taken')}
select ${list(['claimed.*', ...foundIn(t, 'heads')])}, (select count(*)::int from arrived) as read,
  (select ${place}
    from arrived order by ${backwards} limit 1) as read_to,
  (select ${place}
    from arrived  -- the first row read whose key has a row to claim, but there was no room for it
    where (${key} in (${beyondTaken})) is true
    order by ${forwards} limit 1) as no_room_from
from (select 1) as always left join claimed on true`,
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

/** The next rows that are due, whether or not they are the first of their key. */
function arrived(t: TableSql, $: Parameters): string {
  const { key } = orderingOf(t)
  const columns = list(t.arrival.map(({ name }) => name))
  const cursor = list(t.arrival.map(({ type }, i) => `(select ${$(`cursor${i + 1}`, type)})`))
  const where = [inBucket(t, $), `${key} is not null`, ...claimableNow(t), `(${columns}) >= (${cursor})`]
  return `arrived as materialized (  -- the next rows that are due, whether or not they are the first of their key
  select ${columns}, ${key} from ${t.target}
  where ${and(where, '    ')}
  order by ${columns} limit (select ${$('rows', 'int')})
)`
}

/**
 * The first unfinished row of each key, if it can be claimed and no row of the key is in flight. Written as a range: with
 * `=`, the primary key has the order of a key's rows too, and where most rows were of one key when the table was analysed,
 * the planner walks along it, past all finished rows.
 */
function heads(t: TableSql, $: Parameters, wanted: string, bytes: readonly string[] = []): string {
  const { key, id } = orderingOf(t)
  const claimable = [...claimableNow(t), suspects(t, false), notExcluded(t, $)]
  const unfinished = [
    inBucket(t, $, 'o.'),
    `(${t.table.ordering?.unfinished ?? 'true'})`,
    `o.${key} >= wanted.${key} and o.${key} <= wanted.${key}`,
  ]
  const total =
    bytes.length === 0 ? '' : `, ${runningTotal(`head.${id}`, 'head.bytes')}  -- for the byte budget`
  return `heads as materialized (  -- the first unfinished row of each key, if it can be claimed and none is leased
  select head.*${total}
  from ${wanted} cross join lateral (
    select ${list([`o.${id}`, `o.${key}`, ...bytes])},
      (${and(claimable, '        ')}) is true as claimable
    from ${t.target} as o
    where ${and(unfinished, '      ')}
    order by o.${key}, o.${id} limit 1  -- a range: with "=" the primary key has this order too
  ) as head
  where head.claimable and ${noneInFlight(t, $, 'head')}
)`
}

/** The ids as texts, in the order of the ids: a bare name in ORDER BY would be the text, where 10 comes before 9. */
function findHeads(t: TableSql, ctes: string, $: Parameters): string {
  return `
${ctes}
select ${rowIdSql(t)} from heads order by heads.${orderingOf(t).id} limit (select ${$('limit', 'int')})`
}
