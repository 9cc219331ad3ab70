/**
 * Claims in order. They are easiest to read as they are sent: `claim-in-order.sql`, `settle-and-claim-in-order.sql` and
 * `find-in-order.sql` in `docs/sql/outbox`.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { claimLimit, settleAndMakeRoom, settledFact } from './settle.ts'
import { and, type LeaseStatement, list, type Parameters, parameters, statement } from './statement.ts'
import type { OutcomeSql } from './table.ts'
import {
  answer,
  bytesBefore,
  claimableNow,
  claimTaken,
  inBucket,
  isOrderedByDue,
  millisecondsUntil,
  notExcluded,
  orderBy,
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
 * Claims the next rows along the claim index, starting at the cursor. In a table with an ordering key these are the
 * rows that have none. With an outcome it settles a batch of finished rows too: half the round trips of a busy worker.
 */
export function claimInOrder(t: TableSql, settleAs?: OutcomeSql): LeaseStatement {
  const $ = parameters()
  const limit = claimLimit($, settleAs)
  const found =
    t.expiries === undefined ? 'next' : '(select * from next union all select * from suspect) as found'
  const within = and([withinSuspects(t, $), withinBytes(t, $)], '    ')
  const settling = settleAs !== undefined && {
    settled: `${settleAndMakeRoom(t, $, settleAs)},`,
    facts: settledFact(t),
  }
  return statement(
    t.table,
    settling ? 'settle and claim in order' : 'claim in order',
    $,
    `
with
${settling ? settling.settled : ''}
${scan(t, $, limit)},
taken as materialized (
  select *
  from (select *${t.expiries === undefined ? '' : `, ${suspectsBefore(orderBy(t))}`}${bytesBefore(t, orderBy(t))} from ${found}) as found
  ${within === '' ? '' : `where ${within}`}
  order by ${orderBy(t)}
  limit ${subselect(limit)}
),
${claimTaken(t, $)}
${answer(t, $, {
  cursor: `(select json_build_array(${list(t.order.map(({ name }) => `${name}::text`))})
    from taken where not suspect order by ${orderBy(t, 'reversed')} limit 1)`,
  more: `(select count(*) from next) >= ${limit} or (select count(*) from taken where not suspect) < (select count(*) from next)`,
  dueInMs: nextDue(t, $),
  ...(t.table.bytes === undefined ? {} : { bytes: '(select sum(bytes) from taken)' }),
  ...suspectFacts(t),
  ...(settling ? settling.facts : {}),
})}`,
  )
}

/** A bare parameter would be a known number in a custom plan (`statements.ts`). */
function subselect(limit: string): string {
  return limit.startsWith('(select ') ? limit : `(select ${limit})`
}

/** What a claim in order would take next, without taking it: to find the row that stops a claim. */
export function findInOrder(t: TableSql): LeaseStatement {
  const $ = parameters()
  return statement(
    t.table,
    'find in order',
    $,
    `
with ${scan(t, $, $('limit', 'int'))}
select ${rowIdSql(t)} as id, suspect from next
${t.expiries === undefined ? '' : `union all select ${rowIdSql(t)}, suspect from suspect`}`,
  )
}

/** The CTEs `next` and, where the table counts expiries, `suspect`: the rows that are found, each locked. */
function scan(t: TableSql, $: Parameters, limit: string): string {
  const conditions = [inBucket(t, $), ...withoutKey(t), ...claimableNow(t)]
  const columns = list(t.order.map(({ name }) => name))
  const values = (): string => list(t.order.map(({ type }, i) => `(select ${$(`cursor${i + 1}`, type)})`))
  const cursor = t.lowestCursor === undefined ? '' : `(${columns}) >= (${values()})`
  const found = (which: readonly string[], most: string, isSuspect: boolean): string => `
  select ${scanned(t)}, ${isSuspect} as suspect, ${isSuspect ? suspectLoad(t) : '0 as load'}
  from ${t.target}
  where ${and([...conditions, ...which, notExcluded(t, $)], '    ')}
  order by ${orderBy(t)}
  limit ${subselect(most)}
  for update skip locked
)`
  const next = `next as materialized (${found([suspects(t, false), cursor], limit, false)}`
  if (t.expiries === undefined) return next
  return `${next},
suspect as materialized (          -- as many as the process has room for${found([suspects(t, true)], $('suspects', 'int'), true)}`
}

/** When the next row will be due that is not yet: an idle worker need not poll for it. */
function nextDue(t: TableSql, $: Parameters): string {
  const { availableAt, claimable } = t.table
  if (availableAt === undefined || !isOrderedByDue(t)) return 'null'
  const where = [inBucket(t, $), ...withoutKey(t), `(${claimable})`]
  const due = (which: string): string => millisecondsUntil(quote(availableAt), t.target, [...where, which])
  return t.expiries === undefined ? due('') : `least(${due(suspects(t, false))}, ${due(suspects(t, true))})`
}
