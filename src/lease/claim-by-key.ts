import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { answer, bytesBefore, bytesColumn, claimTaken, withinBytes } from './claim-parts.ts'
import { settledFact, settleHeld } from './settle.ts'
import { and, type LeaseStatement, type Parameters, parameters, statement } from './statement.ts'
import type { Outcome } from './table.ts'
import {
  among,
  claimableNow,
  inBucket,
  isSuspect,
  millisecondsUntil,
  notExcluded,
  rowIdSql,
  type TableSql,
} from './table-sql.ts'

/**
 * Claims the heads of ordering keys, walking from key to key in the index: one probe finds the next key and its head,
 * and whatever is queued after a head is never read. With an outcome it settles a batch of finished rows too, and claims
 * the next row of each of their keys.
 *
 * Two claims whose snapshots differ (a late commit, a replay) may pick two rows of one key. The unique index on rows in
 * flight refuses the second, and that claim is repeated.
 */
export function claimByKey(t: TableSql, settled?: Outcome): LeaseStatement {
  const $ = parameters()
  const { key, id } = orderingOf(t)
  const [limit, steps] = [$('limit', 'int'), $('steps', 'int')]
  const within = [
    'nth <= ' + limit,
    `(not suspect or suspects <= ${$('suspects', 'int')})`,
    withinBytes(t, $),
  ]
  return statement(
    t.table,
    settled === undefined ? 'claim by key' : 'settle and claim by key',
    $,
    `
with recursive ${settled === undefined ? '' : `${settleHeld(t, $, settled)},\n${continueKeys(t, $)},\n`}${walkKeys(t, $)},
heads as (
  select * from walk where ready
  ${settled === undefined ? '' : 'union all select *, 0 as step, 0 as found from continued where ready'}
),
chosen as materialized (
  select *
  from (
    select *, row_number() over (order by step, ${id}) as nth,
      count(*) filter (where suspect) over (order by step, ${id}) as suspects${bytesBefore(t, `step, ${id}`)}
    from heads
  ) as ranked
  where ${and(within, '    ')}
),
taken as materialized (
  select ${id}, ${isSuspect(t)} as suspect
  from ${t.target} as t
  where ${and([inBucket(t, $, 't.'), ...among(t, 'chosen'), `(${and(claimableNow(t), '      ')}) is true`], '    ')}
  order by ${id}
  for update skip locked
),
${claimTaken(t, $)}
${answer(t, $, {
  cursor: `(select ${key}::text from walk where step >= ${steps} or found >= ${limit})`,
  more: '(select count(*) from heads) > (select count(*) from chosen)',
  dueInMs: t.table.availableAt === undefined ? 'null' : millisecondsUntil('head_due_at', 'walk'),
  ...(t.table.bytes === undefined
    ? {}
    : { bytes: `(select sum(bytes) from chosen where (${id} in (select ${id} from taken)) is true)` }),
  suspect: `(select ${rowIdSql(t)} from taken where suspect)`,
  ...(settled === undefined ? {} : settledFact(t)),
})}`,
  )
}

/** The heads a claim by key would take next, without taking them: to find the row that stops a claim. */
export function findByKey(t: TableSql): LeaseStatement {
  const $ = parameters()
  return statement(
    t.table,
    'find by key',
    $,
    `
with recursive ${walkKeys(t, $)}
select ${rowIdSql(t)} as id, suspect
from walk
where ready`,
  )
}

/** The CTE `walk`: from key to key, at most `steps` of them, until `limit` heads are found that can be claimed. */
function walkKeys(t: TableSql, $: Parameters): string {
  const { key, id } = orderingOf(t)
  const [limit, steps] = [$('limit', 'int'), $('steps', 'int')]
  const order = [key, id]
  return `walk as (
  select head.*, 1 as step, head.ready::int as found
  from (                            -- the first key from the cursor on
    ${head(t, $, `t.${key} >= ${$('keyCursor', t.orderingKey?.type ?? 'text')}`, order)}
  ) as head
  where ${steps} > 0                -- 0: only the keys that were settled go on
  union all
  select head.*, walk.step + 1, walk.found + head.ready::int
  from walk
  cross join lateral (              -- the next key
    ${head(t, $, `t.${key} > walk.${key}`, order)}
  ) as head
  where walk.step < ${steps} and walk.found < ${limit}
)`
}

/**
 * The head of each key that was just settled, apart from the settled row itself, which this statement's snapshot still
 * shows as leased. Not "an id greater than the settled one": that would skip late commits and replays.
 */
function continueKeys(t: TableSql, $: Parameters): string {
  const { key, id } = orderingOf(t)
  return `continued as materialized (
  select head.*
  from settled
  cross join lateral (              -- the next row of each key that was settled
    ${head(t, $, `t.${key} = settled.${key} and t.${id} <> settled.${id}`, [id], 'settled')}
  ) as head
)`
}

/** The first unfinished row of a key that fits the condition, and whether it can be claimed. */
export function head(
  t: TableSql,
  $: Parameters,
  which: string,
  order: readonly string[],
  inFlight: 'nothing' | 'settled' = 'nothing',
): string {
  const { key, id } = orderingOf(t)
  const { availableAt, ordering } = t.table
  const ready = [...claimableNow(t), notExcluded(t, $)]
  if (t.expiries !== undefined) ready.push(`(not ${isSuspect(t)} or ${$('suspects', 'int')} > 0)`)
  // The row in flight of a key that was just settled is the settled one.
  if (inFlight === 'nothing') ready.push(noneInFlight(t, $, 't'))
  const columns = [
    ...new Set([
      id,
      key,
      ...(t.group === undefined ? [] : [t.group.name, ...t.order.map(({ name }) => name)]),
    ]),
    `${isSuspect(t)} as suspect`,
    ...(availableAt === undefined ? [] : [`${quote(availableAt)} as head_due_at`]),
    ...bytesColumn(t),
  ]
  // A condition that comes out as null is not true, and must not end the walk.
  return `select ${columns.join(', ')},
      (${and(ready, '        ')}) is true as ready
    from ${t.target} as t
    where ${and([inBucket(t, $, 't.'), which, `t.${key} is not null`, `(${ordering?.unfinished ?? 'true'})`], '      ')}
    order by ${order.map((column) => `t.${column}`).join(', ')} limit 1`
}

/**
 * Nothing else of the row's key is in flight. A scalar subquery, which is one probe of the unique index: as `not exists`
 * it becomes an anti-join that scans the index for every key.
 */
export function noneInFlight(t: TableSql, $: Parameters, row: string): string {
  const { key, id } = orderingOf(t)
  const sameGroup = t.group === undefined ? '' : `f.${t.group.name} = ${row}.${t.group.name}`
  const where = [inBucket(t, $, 'f.'), sameGroup, `f.${key} = ${row}.${key}`, `(${t.table.held ?? ''})`]
  return `(
    select f.${id} from ${t.target} as f
    where ${and([...where, `f.${id} <> ${row}.${id}`], '      ')} limit 1
  ) is null`
}

/** The names of the ordering key and of the id, which `leaseTable` has checked that there are. */
export function orderingOf(t: TableSql): { readonly key: string; readonly id: string } {
  return { key: t.orderingKey?.name ?? '', id: t.key[0]?.name ?? '' }
}
