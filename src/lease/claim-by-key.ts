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
  suspectFacts,
  suspectLoad,
  suspectsBefore,
  type TableSql,
  withinBytes,
  withinSuspects,
} from './table-sql.ts'

/**
 * Claims the heads of the ordering keys to which the next rows belong, in the order in which these became due, from the
 * cursor on. It reads what has arrived since the last claim, however many keys wait, and however many rows wait in a key.
 * With an outcome it settles a batch of finished rows too, and claims the next row of each of their keys.
 *
 * When a row is settled without a claim, the next row of its key may be before the cursor. `freed` names such keys. Other
 * rows before the cursor, such as those of late commits, are found by a scan from the start (`claim-cursor.ts`).
 *
 * Two claims whose snapshots differ (a late commit, a replay) may pick two rows of one key. The unique index on rows in
 * flight refuses the second, and that claim is repeated.
 */
export function claimByKey(t: TableSql, settleAs?: OutcomeSql): LeaseStatement {
  const $ = parameters()
  const { id } = orderingOf(t)
  const limit = claimLimit($, settleAs)
  const [met, arrival] = [t.arrival.map((_, i) => `met${i + 1}`), t.arrival.map(({ name }) => name)]
  const within = [`nth <= ${limit}`, withinSuspects(t, $), withinBytes(t, $)]
  const settling = settleAs !== undefined && {
    settled: `${settleAndMakeRoom(t, $, settleAs)},`,
    continued: `${continueKeys(t)},`,
    heads: `union all select continued.*, ${met.map(() => 'null').join(', ')}, 0 as step from continued where ready`,
    facts: {
      ...settledFact(t),
      scanned: '(select rows from scan) > 0',
    },
  }
  // The next rows of keys that were settled or freed come first, or else the oldest.
  const order = `case when ${$('oldestFirst', 'boolean')} then 0 else step end, ${id}`
  const notChosen = `not suspect and (${id} in (select ${id} from chosen)) is not true`
  return statement(
    t.table,
    settling ? 'settle and claim by key' : 'claim by key',
    $,
    `
with
${settling ? settling.settled : ''}
${queued(t, $)},
${settling ? settling.continued : ''}
${findArrived(t, $, { limit, settles: settling !== false })},
heads as materialized (
  select head.*, ${list(met.map((name) => `keys.${name}`))}, case when keys.is_freed then 0 else 1 end as step
  from keys cross join lateral (    -- the first row of each key
    ${head(t, ofKey(t, 'keys'))}
  ) as head
  where head.ready
  ${settling ? settling.heads : ''}
),
chosen as materialized (
  select *
  from (
    select *, row_number() over (order by ${order}) as nth,
      ${suspectsBefore(order)}${bytesBefore(t, order)}
    from heads
  ) as ranked
  where ${and(within, '    ')}
),
passed_over as materialized (       -- for want of room: the next claim starts at the first of them
  select ${list(met)} from heads where step = 1 and ${notChosen}
),
taken as materialized (
  select ${id}, ${isSuspect(t)} as suspect, ${suspectLoad(t)}
  from ${t.target} as t
  where ${and([inBucket(t, $, 't.'), ...among(t, 'chosen'), `(${and(claimableNow(t), '      ')}) is true`], '    ')}
  order by ${id}
  for update skip locked
),
${claimTaken(t, $)}
${answer(t, $, {
  cursor: `coalesce(
    (select json_build_array(${list(met.map((name) => `${name}::text`))}) from passed_over order by ${list(met)} limit 1),
    (select json_build_array(${list(arrival.map((name) => `${name}::text`))}) from arrived order by ${list(arrival.map((name) => `${name} desc`))} limit 1))`,
  more: 'exists (select from passed_over) or (select count(*) from arrived) >= (select rows from scan)',
  found: `(select count(*) from chosen where step = 1 and (${id} in (select ${id} from taken)) is true)`,
  freed: `(select json_agg(${rowIdSql(t)}) from heads where step = 0 and ${notChosen})`,
  dueInMs: nextDue(t, $),
  ...(t.table.bytes === undefined
    ? {}
    : { bytes: `(select sum(bytes) from chosen where (${id} in (select ${id} from taken)) is true)` }),
  ...suspectFacts(t),
  ...(settling ? settling.facts : {}),
})}`,
  )
}

/** The heads a claim by key would take next, without taking them: to find the row that stops a claim. */
export function findByKey(t: TableSql): LeaseStatement {
  const $ = parameters()
  const { id } = orderingOf(t)
  return statement(
    t.table,
    'find by key',
    $,
    `
with ${queued(t, $)},
${findArrived(t, $, { limit: $('limit', 'int'), settles: false })}
select ${rowIdSql(t)} as id, suspect
from keys cross join lateral (
  ${head(t, ofKey(t, 'keys'))}
) as head
where head.ready
order by ${id}
limit (select ${$('limit', 'int')})`,
  )
}

/** How many rows a claim reads besides twice as many as it has room for. */
const EXTRA_ROWS = 50

/**
 * The CTEs `arrived`: the next rows with an ordering key that are due; and `keys`: their keys, where each was met first, and
 * the keys of the rows that the caller names as freed. With `overlapMs` they start before the cursor, if that is closer to the present: a transaction that began earlier
 * may have committed since.
 */
function findArrived(
  t: TableSql,
  $: Parameters,
  { limit, settles }: { readonly limit: string; readonly settles: boolean },
): string {
  const { key, id } = orderingOf(t)
  const freed = [
    inBucket(t, $),
    `${id} = any (array(select unnest(${$('freed1', `${t.idColumns[0]?.type ?? ''}[]`)})))`,
    `${key} is not null`,
  ]
  const columns = list(t.arrival.map(({ name }) => name))
  const cursor = t.arrival.map(({ type }, i) => $(`cursor${i + 1}`, type))
  const overlap = (): string => `now() - ${$('overlapMs', 'float8')} * interval '1 millisecond'`
  const [first = '', second = ''] = cursor
  const start =
    t.table.availableAt === undefined
      ? cursor
      : [
          `least(${first}, ${overlap()})`,
          `case when ${first} <= ${overlap()} then ${second} else '${t.arrival[1]?.lowest ?? ''}' end`,
        ]
  const from = `(${columns}) >= (${list(start.map((value) => `(select ${value})`))})`
  const conditions = [inBucket(t, $), `${key} is not null`, ...claimableNow(t), from]
  const [steps, rows] = [$('steps', 'int'), $('rows', 'int')]
  const room = settles ? `${limit} - (select count(*) from continued where ready)` : limit
  return `scan as materialized (                -- how many rows to read: several may be of one key, or of a key that waits
  select case when ${rows} > 0 then ${rows} when room > 0 then least(${steps}, 2 * room + ${EXTRA_ROWS}) else 0 end as rows
  from (select ${room} as room) as free
),
arrived as materialized (           -- the next rows that are due, first of their key or not
  select ${columns}, ${key}
  from ${t.target}
  where ${and(conditions, '    ')}
  order by ${columns}
  limit (select rows from scan)
),
keys as materialized (              -- their keys, where each was met first, and the keys that were freed
  select distinct on (${key}) ${key}, ${list(t.arrival.map(({ name }, i) => `${name} as met${i + 1}`))}, is_freed
  from (
    select ${columns}, ${key}, false as is_freed from arrived
    union all
    select ${columns}, ${key}, true from ${t.target} where ${and(freed, '      ')}
  ) as found
  order by ${key}, is_freed desc, ${columns}
)`
}

/** When the next row with a key will be due that is not yet: an idle worker need not poll for it. */
function nextDue(t: TableSql, $: Parameters): string {
  const { availableAt, claimable } = t.table
  if (availableAt === undefined) return 'null'
  const where = [inBucket(t, $), `${orderingOf(t).key} is not null`, `(${claimable})`]
  return millisecondsUntil(quote(availableAt), t.target, where)
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
    from queued where ${ofKey(t, 'settled')} and queued.${id} <> settled.${id} order by ${key}, ${id} limit 1
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
    suspectLoad(t),
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

/**
 * The rows of `queued` with the ordering key of this CTE. Written as a range: with `=`, the primary key has their order too,
 * and where most rows were of one key when the table was analysed, the planner walks along it, past all finished rows.
 */
function ofKey(t: TableSql, cte: string): string {
  const { key } = orderingOf(t)
  return `queued.${key} >= ${cte}.${key} and queued.${key} <= ${cte}.${key}`
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
    'load',
    ...(t.table.availableAt === undefined ? [] : ['row_due_at']),
    ...(t.table.bytes === undefined ? [] : ['bytes']),
  ]
}
