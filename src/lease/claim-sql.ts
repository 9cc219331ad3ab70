/** The claim, alone and together with the settlement of what was finished meanwhile. */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { settleUpdate } from './held-sql.ts'
import { advance, continued, followers, judged, type Lines, linesOf, lookAgain } from './line-sql.ts'
import { NOTE, noteClaim, NOTES } from './note-sql.ts'
import {
  assignments,
  CLOCK_TOKEN,
  heldLeases,
  inBucket,
  isFree,
  list,
  named,
  type Parts,
  rowId,
  TOKEN_MARK,
} from './parts.ts'
import { type LeaseStatement, type Parameters, parameters, statement } from './statement.ts'
import { type Outcome } from './table.ts'

/** The most rows one claim or reap can take. */
export const MAX_BATCH = 10_000

/** Where the look begins: at the start of the order, or at the place where another look ended. */
export type From = 'start' | 'place'

/** Takes the next rows and gives each a new token, in one statement (RULE-020-001, RULE-020-040). */
export function claim(parts: Parts, from: From): LeaseStatement {
  const parameter = parameters()
  const lines = linesOf(parts)
  return statement(
    `claim_${from}`,
    parameter,
    lines === undefined
      ? `
with next as materialized (${nextRows(parts, parameter, { from })}),
${claimed(parts, parameter, 'next')}
${factsAndRows(parts, parameter, { chosen: 'next' })}`
      : `
with next as materialized (${nextRows(parts, parameter, { from, lines })}),
${judged(parts, lines, parameter, [], false)},
${claimed(parts, parameter, 'heads')}
${factsAndRows(parts, parameter, { chosen: 'heads', ...seenInLines(parts, parameter, 'heads', CLAIM_FACTS) })}`,
  )
}

/**
 * Settles one batch and claims the next: half the round trips of a busy worker. Both see the table as it was before;
 * a row whose lease is over, and which is therefore claimable again, is settled and not claimed.
 */
export function exchange(parts: Parts, outcome: string, declared: Outcome, from: From): LeaseStatement {
  const parameter = parameters()
  const lines = linesOf(parts)
  const name = `exchange_${from}_${outcome}`
  if (lines !== undefined)
    return statement(name, parameter, exchangeInLines(parts, parameter, declared, from, lines))
  return statement(
    name,
    parameter,
    `
with held as materialized (${heldLeases(parts, parameter)}),
settled as (
${settleUpdate(parts, parameter, declared)}
),
next as materialized (${nextRows(parts, parameter, { from, besides: notHeld(parts) })}),
${claimed(parts, parameter, 'next')}
${factsAndRows(parts, parameter, { chosen: 'next', settled: SETTLED })}`,
  )
}

/**
 * The same where rows stand in lines. The order matters and is forced by what refers to what: settle, then take or
 * advance those who follow, and only then look. Only the settlement waits for locks, and it holds none but those of
 * its own rows then.
 */
function exchangeInLines(
  parts: Parts,
  parameter: Parameters,
  declared: Outcome,
  from: From,
  lines: Lines,
): string {
  const besides = [
    ...notHeld(parts),
    `(${lines.id} in (select "@k1" from followers)) is not true`,
    '(select count(*) from advanced) is not null',
  ]
  const left = `${parameter('limit', 'int')} - (select count(*) from continued)`
  const facts = {
    chosen: 'chosen',
    settled: SETTLED,
    ...seenInLines(parts, parameter, 'chosen', {
      seen: '(select count(*) from next) + (select count(*) from continued)',
      more: '(select count(*) from locked) + (select count(*) from revived) > 0',
      again: lookAgain('continued'),
    }),
  }
  return `
with held as materialized (${heldLeases(parts, parameter)}),
settled as (
${settleUpdate(parts, parameter, declared)}
),
${followers(parts, lines, parameter, 'settled', true)},
${continued(parts, lines, parameter)},
${advance(parts, lines, parameter, 'continued')},
next as materialized (${nextRows(parts, parameter, { from, besides, lines, limit: left })}),
kept as materialized (select "@k1" from settled where "@left" is null),
${judged(parts, lines, parameter, ['continued', 'locked', 'kept'], true)},
chosen as materialized (
  select "@k1" from continued union all select "@k1" from heads
),
${claimed(parts, parameter, 'chosen')}
${factsAndRows(parts, parameter, facts)}`
}

/**
 * What is being settled in the same statement is not for the claim, even if its lease is over. Where that is for the
 * reaper to find, it is not, because it is leased.
 */
function notHeld({ table, key }: Parts): string[] {
  if (table.onExpiry === 'reap') return []
  const [columns, aliases] = [key.map((k) => k.column), key.map((k) => k.alias)]
  return [`((${list(columns)}) in (select ${list(aliases)} from held)) is not true`]
}

function keyAndOrder({ key, order }: Parts): string[] {
  return [...key, ...order].map(({ column, alias }) => `${column} as ${alias}`)
}

interface NextRows {
  readonly from: From
  readonly lines?: Lines
  readonly besides?: readonly string[]
  /** Instead of all that was asked for. */
  readonly limit?: string
}

function nextRows(
  parts: Parts,
  parameter: Parameters,
  { from, lines, besides = [], limit }: NextRows,
): string {
  const { table, target, order } = parts
  const where = [
    ...inBucket(parts, parameter),
    `(${table.claimable})`,
    ...(lines === undefined ? [] : [`not ${lines.behind}`]),
    ...(table.availableAt === undefined ? [] : [`${quote(table.availableAt)} <= now()`]),
    // Not leased, whatever `claimable` says: a declaration may forget to make it untrue. Said with `coalesce`, because
    // the planner takes a plain `is null` on a table without statistics for one row in 200 and gives up the order.
    // A lease without an owner is none.
    `coalesce(${isFree(parts)}, true)`,
    ...(table.exhausted === undefined ? [] : [`(${parts.owner} is null or not (${table.exhausted}))`]),
    ...(from === 'place'
      ? [
          `(${list(order.map(({ column }) => column))}) >= (${list(order.map((o) => parameter(o.alias, o.type)))})`,
        ]
      : []),
    ...besides,
  ]
  const columns = [...keyAndOrder(parts), ...(lines === undefined ? [] : [`${lines.key} as "@line"`])]
  const look = (also: readonly string[], most: string | number): string => `select ${list(columns)}
      from ${target}
      where ${[...also, ...where].join('\n        and ')}
      order by ${list(order.map((o) => `${o.column} ${o.direction}`))}
      limit ${most}
      for update skip locked`
  const few = `limit (select ${limit ?? parameter('limit', 'int')})`
  // The limit stands there twice because the planner takes one for a tenth of what it limits. With a thousand rows to
  // expect it found its generic plan a little dearer than a new one, and made a new one, 1 ms, for every exchange.
  return `
  select *
  from (
    select *
    from (
      ${fromLanes(parts, parameter, (lane) => (lane === undefined ? look([], MAX_BATCH) : look([lane], 'lane."@room"')))}
    ) as candidates
    ${few}
  ) as few
  ${few}
`
}

/** Each lane is looked at by itself, and no further than there is room for rows of it. */
function fromLanes(
  { table, laneType }: Parts,
  parameter: Parameters,
  look: (lane: string | undefined) => string,
): string {
  if (table.lanes === undefined || laneType === undefined) return look(undefined)
  return `select found.*
      from ${openLanes(parameter, laneType)}
      cross join lateral (
      ${look(`${quote(table.lanes)} = lane."@lane"`)}
      ) as found
      limit ${MAX_BATCH}`
}

function openLanes(parameter: Parameters, laneType: string): string {
  return `unnest(${parameter('lanes', `${laneType}[]`)}, ${parameter('rooms', 'int[]')}) as lane ("@lane", "@room")`
}

function claimed(parts: Parts, parameter: Parameters, chosen: string): string {
  const returned = [...leaseColumns(parts), ...parts.columns.map((column) => `t.${quote(column)}`)]
  return `${noteClaim(parts, parameter, chosen)}claimed as (
${claimWhere(parts, parameter, chosen)}
returning ${list(returned)}
)`
}

/** What a statement says besides the rows it claimed: a name of `Facts` in `claim-result.ts`, and its SQL. */
type FactsSql = Readonly<Record<string, string>> & {
  /** The CTE with the rows that are claimed, in order. */
  readonly chosen: string
}

/** Which leases were settled; null: all that were asked about, and that is what mostly happens. */
const SETTLED = `case when (select count(*) from settled) < (select count(*) from held)
    then (select coalesce(json_agg("@id"), '[]') from settled) end`

const CLAIM_FACTS = {
  seen: '(select count(*) from next)',
  more: '(select count(*) from revived) > 0',
  again: "'{}'::text[]",
}

/** What a look in lines says of what it found: it may find rows and claim none of them. */
function seenInLines(
  parts: Parts,
  parameter: Parameters,
  chosen: string,
  { seen, more, again }: typeof CLAIM_FACTS,
): Record<string, string> {
  return {
    seen,
    more,
    again,
    nextDueMs: nextDue(parts, parameter),
    moved: `(select count(*) from (select from ${chosen} limit 1) as any_claimed) + (select count(*) from marked) > 0`,
  }
}

/**
 * One row with what all have in common, then the claimed rows: a column for each fact would be computed, sent and read
 * for every row. `claim-result.ts` reads the columns by position.
 */
function factsAndRows(parts: Parts, parameter: Parameters, { chosen, ...facts }: FactsSql): string {
  const all: Readonly<Record<string, string>> = {
    until: `extract(epoch from ${leaseEnd(parameter)})::float8 * 1000`,
    order: `(select json_agg(${rowId(parts.key.map((k) => k.alias))}) from ${chosen})`,
    place: `(${lastPlace(parts)})`,
    ...facts,
    ...(parts.notes === undefined ? {} : { notes: NOTES }),
  }
  const named = Object.entries(all).map(([name, fact]) => `${fact} as ${quote(name)}`)
  const own = leaseColumns(parts).map(() => 'null')
  return `select (select row_to_json(facts) from (select ${named.join(',\n  ')}) as facts) as "@facts", ${list([...own, ...parts.columns.map(() => 'null')])}
union all
select null, claimed.* from claimed`
}

function leaseEnd(parameter: Parameters): string {
  return `now() + ${parameter('leaseMs', 'float8')} * interval '1 millisecond'`
}

/** In how many milliseconds the next row that is not due yet will be: a worker with nothing to do need not poll for it. */
function nextDue(parts: Parts, parameter: Parameters): string {
  const { table, target } = parts
  if (table.availableAt === undefined) return 'null::float8'
  const at = quote(table.availableAt)
  const where = [
    ...inBucket(parts, parameter),
    `(${table.claimable})`,
    ...(table.ordering === undefined ? [] : [`not ${quote(table.ordering.behind)}`]),
    `${at} > now()`,
    // PostgreSQL 15 cannot subtract from infinity.
    `isfinite(${at})`,
  ]
  const first = (also: readonly string[]): string =>
    `select ${at} as "@at" from ${target} where ${[...also, ...where].join(' and ')} order by ${at} limit 1`
  const soonest =
    table.lanes === undefined || parts.laneType === undefined
      ? first([])
      : `select min("@at") as "@at" from ${openLanes(parameter, parts.laneType)} cross join lateral (${first([`${quote(table.lanes)} = lane."@lane"`])}) as first`
  return `(select extract(epoch from "@at" - now())::float8 * 1000 from (${soonest}) as soonest)`
}

function leaseColumns({ key, tokenAfterClaim, idIsColumn }: Parts): string[] {
  const id = idIsColumn ? [] : [`${rowId(key.map((k) => `t.${k.column}`))} as "@id"`]
  return [`${tokenAfterClaim} as "@token"`, ...id]
}

/** Where the look ended. The values of that row alone become texts, not of all before it. */
function lastPlace({ order }: Parts): string {
  return `select array[${list(order.map((o) => `${o.alias}::text`))}]
    from (select * from next offset (select greatest(count(*) - 1, 0) from next)) as last`
}

function claimWhere(parts: Parts, parameter: Parameters, source: string): string {
  const { target, key } = parts
  return `update ${target} as t
set ${list(claimAssignments(parts, parameter))}
where ${[...inBucket(parts, parameter, 't.'), ...named(key, source)].join('\n  and ')}`
}

function claimAssignments(parts: Parts, parameter: Parameters): string[] {
  const { table, owner, until, token } = parts
  const lines = linesOf(parts)
  const ownerValue = parameter('owner', 'text')
  return [
    `${until} = ${leaseEnd(parameter)}`,
    // Grows by one and is never reset (D3); no sequence, so that the statement can go to one shard whole.
    ...(token === undefined
      ? [`${owner} = ${ownerValue} || '${TOKEN_MARK}' || ${CLOCK_TOKEN}`]
      : [`${owner} = ${ownerValue}`, `${token} = coalesce(t.${token}, 0) + 1`]),
    // An expired lease that nobody reaped is an attempt that failed (D4).
    ...(table.attempts === undefined || table.onExpiry !== 'claimable'
      ? []
      : [
          `${quote(table.attempts)} = coalesce(t.${quote(table.attempts)}, 0) + case when t.${owner} is null then 0 else 1 end`,
        ]),
    ...(lines === undefined ? [] : [`${lines.behind} = false`]),
    ...(parts.notes === undefined ? [] : [`${parts.notes.column} = ${NOTE}`]),
    ...assignments(table.writes.claim),
  ]
}
