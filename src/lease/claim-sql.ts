/** The claim, alone and together with the settlement of what was finished meanwhile. */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { BUNDLE_FACTS, LISTED, putBack } from './bundle-sql.ts'
import { settleUpdate } from './held-sql.ts'
import { advance, continued, followers, judged, type Lines, linesOf, lookAgain } from './line-sql.ts'
import { type From, lastPlace, nextDue, nextRows } from './look-sql.ts'
import { NOTE, noteClaim, NOTES } from './note-sql.ts'
import {
  assignments,
  CLOCK_TOKEN,
  heldLeases,
  inBucket,
  list,
  named,
  type Parts,
  rowId,
  TOKEN_MARK,
} from './parts.ts'
import { type LeaseStatement, type Parameters, parameters, statement } from './statement.ts'
import type { Outcome } from './table.ts'

/** Takes the next rows and gives each a new token, in one statement (RULE-020-001, RULE-020-040). */
export function claim(parts: Parts, from: From): LeaseStatement {
  const parameter = parameters()
  const lines = linesOf(parts)
  return statement(
    `claim_${from}`,
    parameter,
    lines === undefined
      ? `
with ${nextRows(parts, parameter, { from })},
${claimed(parts, parameter, 'next')}
${factsAndRows(parts, parameter, { chosen: 'next', ...seenInBundles(parts, parameter) })}`
      : `
with ${nextRows(parts, parameter, { from, lines })},
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
  // Only the settlement waits for locks, and it holds none but those of its own rows then.
  const afterSettling =
    parts.bundles === undefined
      ? {}
      : { limit: `${parameter('limit', 'int')} + 0 * (select count(*) from settled)` }
  return statement(
    name,
    parameter,
    `
with held as materialized (${heldLeases(parts, parameter)}),
settled as (
${settleUpdate(parts, parameter, declared)}
),
${nextRows(parts, parameter, { from, besides: notHeld(parts), ...afterSettling })},
${claimed(parts, parameter, 'next', { settled: `select "@id"::${parts.key[0]?.type ?? 'text'} from settled` })}
${factsAndRows(parts, parameter, { chosen: 'next', settled: SETTLED, ...seenInBundles(parts, parameter) })}`,
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
    `(${lines.id} in (select "@k1" from continued union all select "@k1" from locked where "@behind")) is not true`,
    '(select count(*) from advanced) is not null',
  ]
  const left = `${parameter('limit', 'int')} - (select count(*) from continued)`
  const facts = {
    chosen: 'chosen',
    settled: SETTLED,
    ...seenInLines(parts, parameter, 'chosen', {
      others: ['continued'],
      more: `(select count(*) from locked where ("@k1" in (select "@k1" from chosen)) is not true)
    + (select count(*) from revived) > 0`,
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
${nextRows(parts, parameter, { from, besides, lines, limit: left })},
kept as materialized (select "@k1" from settled where "@left" is null),
${judged(parts, lines, parameter, ['continued', 'locked', 'kept'], true)},
chosen as materialized (
  select "@k1" from continued union all select "@k1" from heads
),
${claimed(parts, parameter, 'chosen', { settled: 'select "@k1" from settled', continued: ['continued'] })}
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

/** What a statement does beside its claim. */
interface Beside {
  /** The keys of what it settles, as a query. */
  readonly settled?: string
  /** CTEs with rows that it claims without a look. */
  readonly continued?: readonly string[]
}

function claimed(
  parts: Parts,
  parameter: Parameters,
  chosen: string,
  { settled, continued = [] }: Beside = {},
): string {
  const returned = [...leaseColumns(parts), ...parts.columns.map((column) => `t.${quote(column)}`)]
  const rest = parts.bundles === undefined ? '' : `,\n${putBack(parts, parameter, continued)}`
  return `${noteClaim(parts, parameter, chosen, settled)}claimed as (
${claimWhere(parts, parameter, chosen)}
returning ${list(returned)}
)${rest}`
}

/** What a statement says besides the rows it claimed: a name of `Facts` in `claim-result.ts`, and its SQL. */
type FactsSql = Readonly<Record<string, string>> & {
  /** The CTE with the rows that are claimed, in order. */
  readonly chosen: string
}

/** Which leases were settled; null: all that were asked about, and that is what mostly happens. */
const SETTLED = `case when (select count(*) from settled) < (select count(*) from held)
    then (select coalesce(json_agg("@id"), '[]') from settled) end`

const CLAIM_FACTS: InLines = {
  others: [],
  more: '(select count(*) from revived) > 0',
  again: "'{}'::text[]",
}

interface InLines {
  /** CTEs with rows that were found otherwise than by the look. */
  readonly others: readonly string[]
  readonly more: string
  readonly again: string
}

/** What a look in lines says of what it found: it may find rows and claim none of them. */
function seenInLines(
  parts: Parts,
  parameter: Parameters,
  chosen: string,
  { others, more, again }: InLines,
): Record<string, string> {
  const found = parts.bundles === undefined ? 'next' : 'listed'
  const moved = `(select count(*) from (select from ${chosen} limit 1) as any_claimed) + (select count(*) from marked) > 0`
  return {
    seen: [found, ...others].map((cte) => `(select count(*) from ${cte})`).join(' + '),
    more,
    again,
    nextDueMs: nextDue(parts, parameter),
    moved: parts.bundles === undefined ? moved : `${moved} or ${LISTED}`,
    ...(parts.bundles === undefined ? {} : BUNDLE_FACTS),
  }
}

/** The same of a look through bundles: what they name may not be there, or not be for a claim. */
function seenInBundles(parts: Parts, parameter: Parameters): Record<string, string> {
  if (parts.bundles === undefined) return {}
  return {
    seen: '(select count(*) from listed)',
    nextDueMs: nextDue(parts, parameter),
    moved: LISTED,
    ...BUNDLE_FACTS,
  }
}

/**
 * One row with what all have in common, then the claimed rows: a column for each fact would be computed, sent and read
 * for every row. `claim-result.ts` reads the columns by position.
 */
function factsAndRows(parts: Parts, parameter: Parameters, { chosen, ...facts }: FactsSql): string {
  const all: Readonly<Record<string, string>> = {
    until: `extract(epoch from ${leaseEnd(parameter)})::float8 * 1000`,
    order: `(select json_agg(${rowId(parts.key.map((k) => k.alias))}) from ${inOrder(parts, chosen)})`,
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

/** What was chosen, in order. Rows that bundles name are looked up by their key, and have lost the order of the bundles. */
function inOrder({ bundles }: Parts, chosen: string): string {
  if (bundles === undefined) return chosen
  const continued = chosen === 'chosen' ? 'select "@k1" from continued union all ' : ''
  return `(${continued}select "@k1" from listed) as in_order`
}

function leaseEnd(parameter: Parameters): string {
  return `now() + ${parameter('leaseMs', 'float8')} * interval '1 millisecond'`
}

function leaseColumns({ key, tokenAfterClaim, idIsColumn }: Parts): string[] {
  const id = idIsColumn ? [] : [`${rowId(key.map((k) => `t.${k.column}`))} as "@id"`]
  return [`${tokenAfterClaim} as "@token"`, ...id]
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
