/**
 * Claims by ordering key. They are easiest to read as they are sent: `claim-by-key.sql`, `settle-and-claim-by-key.sql` and
 * `find-by-key.sql` in `docs/sql/outbox`.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { claimLimit, settleAndMakeRoom, settledFact } from './settle.ts'
import {
  and,
  type LeaseStatement,
  list,
  type Parameters,
  parameters,
  statement,
  wrapped,
} from './statement.ts'
import type { OutcomeSql } from './table.ts'
import {
  among,
  answer,
  bytesBefore,
  bytesColumn,
  claimableNow,
  claimTaken,
  inBucket,
  isSuspect,
  millisecondsUntil,
  noneInFlight,
  notExcluded,
  orderingOf,
  rowIdSql,
  type TableSql,
  withinBytes,
} from './table-sql.ts'

/**
 * Claims the heads of ordering keys, walking from key to key in the index: one probe finds the next key and its head,
 * and whatever is queued after a head is never read. With an outcome it settles a batch of finished rows too, and claims
 * the next row of each of their keys.
 *
 * Two claims whose snapshots differ (a late commit, a replay) may pick two rows of one key. The unique index on rows in
 * flight refuses the second, and that claim is repeated.
 */
export function claimByKey(t: TableSql, settleAs?: OutcomeSql): LeaseStatement {
  const $ = parameters()
  const { key, id } = orderingOf(t)
  const [limit, steps] = [claimLimit($, settleAs), $('steps', 'int')]
  const found = settleAs === undefined ? limit : '(select rows from others)'
  const within = [
    `nth <= ${limit}`,
    `(not suspect or suspects <= ${$('suspects', 'int')})`,
    withinBytes(t, $),
  ]
  const settling = settleAs !== undefined && {
    settled: `${settleAndMakeRoom(t, $, settleAs)},`,
    continued: `${continueKeys(t)},
${roomForOthers(limit, $)},`,
    // The heads of other keys come first: they were only searched for as far as there is room for them.
    heads: `union all select *, ${LAST_STEP} as step, 0 as found from continued where ready`,
    facts: { ...settledFact(t), walked: `${found} > 0` },
  }
  return statement(
    t.table,
    settling ? 'settle and claim by key' : 'claim by key',
    $,
    `
with recursive
${settling ? settling.settled : ''}
${queued(t, $)},
${settling ? settling.continued : ''}
${walkKeys(t, $, found)},
heads as (
  select * from walk where ready
  ${settling ? settling.heads : ''}
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
  cursor: `(select ${key}::text             -- at most one row: the walk ends at it
    from walk where step >= ${steps} or found >= ${found})`,
  more: '(select count(*) from heads) > (select count(*) from chosen)',
  dueInMs: t.table.availableAt === undefined ? 'null' : millisecondsUntil('row_due_at', 'walk'),
  ...(t.table.bytes === undefined
    ? {}
    : { bytes: `(select sum(bytes) from chosen where (${id} in (select ${id} from taken)) is true)` }),
  suspect: `(select ${rowIdSql(t)} from taken where suspect)`,
  ...(settling ? settling.facts : {}),
})}`,
  )
}

/** Greater than the number of any step of a walk. */
const LAST_STEP = 2_147_483_647

/** The CTE `others`: how many heads are searched for besides those of the keys that were settled. */
function roomForOthers(room: string, $: Parameters): string {
  return `others as materialized (            -- the room for other keys, and a share for them where none is left
  select least(${room}, greatest(${room} - (select count(*) from continued where ready), ${$('others', 'int')})) as rows
)`
}

/** The heads a claim by key would take next, without taking them: to find the row that stops a claim. */
export function findByKey(t: TableSql): LeaseStatement {
  const $ = parameters()
  return statement(
    t.table,
    'find by key',
    $,
    `
with recursive ${queued(t, $)},
${walkKeys(t, $, $('limit', 'int'))}
select ${rowIdSql(t)} as id, suspect
from walk
where ready`,
  )
}

/** The CTE `walk`: from key to key, at most `steps` of them, until `limit` heads are found that can be claimed. */
function walkKeys(t: TableSql, $: Parameters, limit: string): string {
  const { key } = orderingOf(t)
  const steps = $('steps', 'int')
  return `walk as (
  select head.*, 1 as step, head.ready::int as found
  from (                            -- the first key from the cursor on
    ${head(t, `${key} >= ${$('keyCursor', t.orderingKey?.type ?? 'text')}`)}
  ) as head
  where ${steps} > 0                -- 0: only the keys that were settled go on
    and ${limit} > 0
  union all
  select head.*, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (    -- the next key
    ${head(t, `queued.${key} > walk.${key}`)}
  ) as head
  where walk.step < ${steps} and walk.found < ${limit}
)`
}

/**
 * The head of each key that was just settled, apart from the settled row itself, which this statement's snapshot still
 * shows as leased. Not "an id greater than the settled one": that would skip late commits and replays.
 */
function continueKeys(t: TableSql): string {
  const { key, id } = orderingOf(t)
  return `continued as materialized (
  select head.*
  from settled cross join lateral (    -- the next row of each key that was settled
    -- its key is free: its only row in flight was the settled one
    select ${list(headColumns(t))}, claimable as ready
    from queued where queued.${key} = settled.${key} and queued.${id} <> settled.${id} order by ${id} limit 1
  ) as head
)`
}

/**
 * The CTE `queued`: the unfinished rows of ordering keys. `claimable`: the row could be claimed if it were the head of its
 * key. `key_is_free`: no other row of its key is in flight. Not materialized: PostgreSQL inlines it into each use.
 */
export function queued(t: TableSql, $: Parameters): string {
  const { key, id } = orderingOf(t)
  const { availableAt, ordering } = t.table
  const columns = [
    ...new Set([
      id,
      key,
      ...(t.group === undefined ? [] : [t.group.name, ...t.order.map(({ name }) => name)]),
    ]),
    `${isSuspect(t)} as suspect`,
    ...(availableAt === undefined ? [] : [`${quote(availableAt)} as row_due_at`]),
    ...bytesColumn(t),
  ]
  const claimable = [...claimableNow(t), notExcluded(t, $)]
  if (t.expiries !== undefined) claimable.push(`(not ${isSuspect(t)} or ${$('suspects', 'int')} > 0)`)
  const where = [inBucket(t, $), `${key} is not null`, `(${ordering?.unfinished ?? 'true'})`]
  // A condition that comes out as null is not true, and must not end the walk.
  return `queued as not materialized (         -- the unfinished rows of ordering keys
  select ${wrapped(columns, ', ', '    ')},
    (${and(claimable, '      ')}) is true as claimable,
    ${noneInFlight(t, $, 't')} as key_is_free
  from ${t.target} as t
  where ${and(where, '    ')}
)`
}

/** The first row of `queued` that fits the condition: the head of its key, and whether it is `ready` to be claimed. */
export function head(t: TableSql, which: string): string {
  const { key, id } = orderingOf(t)
  return `select ${list(headColumns(t))}, claimable and key_is_free as ready
    from queued where ${which} order by ${key}, ${id} limit 1`
}

function headColumns(t: TableSql): string[] {
  const { key, id } = orderingOf(t)
  const ofGroup = t.group === undefined ? [] : [t.group.name, ...t.order.map(({ name }) => name)]
  return [
    ...new Set([id, key, ...ofGroup]),
    'suspect',
    ...(t.table.availableAt === undefined ? [] : ['row_due_at']),
    ...(t.table.bytes === undefined ? [] : ['bytes']),
  ]
}
