/** The claim, alone and together with the settlement of what was finished meanwhile. */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { settleUpdate } from './held-sql.ts'
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
import { type OutcomeDeclaration } from './table.ts'

/** The most rows one claim or reap can take. */
export const MAX_BATCH = 10_000

/** Where the look begins: at the start of the order, or at the place where another look ended. */
export type From = 'start' | 'place'

/** Takes the next rows and gives each a new token, in one statement (RULE-020-001, RULE-020-040). */
export function claim(parts: Parts, from: From): LeaseStatement {
  const parameter = parameters()
  const next = nextRows(parts, parameter, from)
  return statement(
    `claim_${from}`,
    parameter,
    `
with next as materialized (${next})
${claimUpdate(parts, parameter)}`,
  )
}

/**
 * Settles one batch and claims the next: half the round trips of a busy worker. Both see the table as it was before;
 * a row whose lease is over, and which is therefore claimable again, is settled and not claimed. At least one row comes back, so that the settled ids always have one to travel on.
 */
export function exchange(
  parts: Parts,
  outcome: string,
  declared: Required<OutcomeDeclaration>,
  from: From,
): LeaseStatement {
  const parameter = parameters()
  return statement(
    `exchange_${from}_${outcome}`,
    parameter,
    `
with held as materialized (${heldLeases(parts, parameter)}),
settled as (
${settleUpdate(parts, parameter, declared)}
),
next as materialized (${nextRows(parts, parameter, from, notHeld(parts))}),
claimed as (
${claimUpdate(parts, parameter)}
)
select claimed.*, case when row_number() over () = 1 then array(select "@id" from settled) end as "@settled"
from (select) as always left join claimed on true`,
  )
}

/** What is being settled in the same statement is not for the claim, even if its lease is over. */
function notHeld({ key }: Parts): string {
  const [columns, aliases] = [key.map((k) => k.column), key.map((k) => k.alias)]
  return `((${list(columns)}) in (select ${list(aliases)} from held)) is not true`
}

function nextRows(parts: Parts, parameter: Parameters, from: From, ...besides: readonly string[]): string {
  const { table, target, key, order, until } = parts
  const where = [
    ...inBucket(parts, parameter),
    `(${table.claimable})`,
    ...(table.availableAt === undefined ? [] : [`${quote(table.availableAt)} <= now()`]),
    // Not leased, whatever `claimable` says: a declaration may forget to make it untrue. Said with `coalesce`, because
    // the planner takes a plain `is null` on a table without statistics for one row in 200 and gives up the order.
    // A lease without an owner is none.
    `coalesce(${until} ${table.onExpiry === 'claimable' ? '<= now()' : "< '-infinity'"} or ${parts.owner} is null, true)`,
    ...(table.exhausted === undefined ? [] : [`(${until} is null or not (${table.exhausted}))`]),
    ...(from === 'place'
      ? [
          `(${list(order.map(({ column }) => column))}) >= (${list(order.map((o) => parameter(o.alias, o.type)))})`,
        ]
      : []),
    ...besides,
  ]
  const columns = [...key, ...order].map(({ column, alias }) => `${column} as ${alias}`)
  return `
  select *
  from (
    select ${list(columns)}
    from ${target}
    where ${where.join('\n      and ')}
    order by ${list(order.map((o) => `${o.column} ${o.direction}`))}
    limit ${MAX_BATCH}
    for update skip locked
  ) as candidates
  limit (select ${parameter('limit', 'int')})
`
}

/** What the rows have in common travels once, on the first of them. `claim-result.ts` reads the columns by position. */
function claimUpdate(parts: Parts, parameter: Parameters): string {
  const { target, key, order, until } = parts
  const first = `(${list(key.map((k) => `t.${k.column}`))}) = (select ${list(key.map((k) => k.alias))} from next limit 1)`
  return `update ${target} as t
set ${list(claimAssignments(parts, parameter))}
where ${[...inBucket(parts, parameter, 't.'), ...named(key, 'next')].join('\n  and ')}
returning
  ${rowId(key.map((k) => `t.${k.column}`))} as "@id",
  ${parts.tokenAfterClaim} as "@token",
  extract(epoch from t.${until})::float8 * 1000 as "@until",
  case when ${first} then array(select ${rowId(key.map((k) => k.alias))} from next) end as "@order",
  case when ${first} then (
    select array[${list(order.map((o) => `${o.alias}::text`))}] from next offset (select count(*) - 1 from next)
  ) end as "@place",
  ${list(parts.columns.map((column) => `t.${quote(column)}`))}`
}

function claimAssignments(parts: Parts, parameter: Parameters): string[] {
  const { table, owner, until, token } = parts
  const ownerValue = parameter('owner', 'text')
  return [
    `${until} = now() + ${parameter('leaseMs', 'float8')} * interval '1 millisecond'`,
    // Grows by one and is never reset (D3); no sequence, so that the statement can go to one shard whole.
    ...(token === undefined
      ? [`${owner} = ${ownerValue} || '${TOKEN_MARK}' || ${CLOCK_TOKEN}`]
      : [`${owner} = ${ownerValue}`, `${token} = coalesce(t.${token}, 0) + 1`]),
    // An expired lease that nobody reaped is an attempt that failed (D4).
    ...(table.attempts === undefined || table.onExpiry !== 'claimable'
      ? []
      : [
          `${quote(table.attempts)} = coalesce(t.${quote(table.attempts)}, 0) + case when t.${until} is null then 0 else 1 end`,
        ]),
    ...assignments(table.writes.claim),
  ]
}
