/**
 * Every statement of the kernel, generated once for a table and prepared under its name.
 *
 * Names that begin with `@` are ours, so that no column a user names in a fragment can be ambiguous: `@k1…` the
 * key, `@o1…` the order, `@token`, `@owner`.
 *
 * Three habits keep the plans where they are, whatever the statistics say (docs/decisions/002-plans.md):
 * - Rows are reached by `key = any (array(select …))`. The planner takes such an array for ten elements, always,
 *   and stays on the key's index; a known array of 500, or a join, becomes a sequential scan on a small table.
 * - What must match row by row is compared by `((…) in (select …)) is true`. With `is true` it stays a hashed subplan,
 *   one probe a row; as a join it can become a nested loop, 100 million comparisons for a batch of 10,000.
 * - The limit of a claim is `(select $n)` over a constant cap. A bare `limit $n` is a known number in a custom plan
 *   and a tenth of the table in a generic one; this is a tenth of at most ten thousand in both.
 *
 * `now()` is the start of the transaction. In a transaction of the caller's it is early, so that a lease is at worst
 * too short and an expired lease at worst not seen yet.
 */
import { quoteIdentifier as quote, quoteLiteral } from '../postgres/identifiers.ts'
import { type TableShape } from './inspect.ts'
import {
  assignments,
  CLOCK_TOKEN,
  heldLeases,
  inBucket,
  list,
  named,
  ours,
  type Parts,
  partsOf,
  rowId,
  TOKEN_MARK,
} from './parts.ts'
import { type LeaseStatement, parameters, statement } from './statement.ts'
import { heldOf, type LeaseTable, type OutcomeDeclaration, replaceArguments } from './table.ts'

/** The most rows one claim or reap can take. */
export const MAX_BATCH = 10_000

export interface LeaseStatements {
  readonly claim: LeaseStatement
  /** The claim that goes on from a place; absent when the order runs in both directions. */
  readonly claimFrom: LeaseStatement | undefined
  readonly renew: LeaseStatement
  readonly release: LeaseStatement
  readonly reap: LeaseStatement
  readonly settle: ReadonlyMap<string, LeaseStatement>
  /** The row's columns in the order in which a claim returns them, behind its own. */
  readonly columns: readonly string[]
}

export function leaseStatements(table: LeaseTable, shape: TableShape): LeaseStatements {
  const parts = partsOf(table, shape)
  const ascending = table.order.every(({ direction }) => direction === 'asc')
  return {
    claim: claim(parts, 'start'),
    claimFrom: ascending ? claim(parts, 'place') : undefined,
    renew: renew(parts),
    release: endLease(parts, 'release', { set: table.writes.release, args: {} }),
    reap: reap(parts),
    settle: new Map(
      Object.entries(table.outcomes).map(([outcome, declared]) => [
        outcome,
        endLease(parts, `settle_${outcome}`, declared),
      ]),
    ),
    columns: parts.columns,
  }
}

/** Takes the next rows and gives each a new token, in one statement (RULE-020-001, RULE-020-040). */
function claim(parts: Parts, from: 'start' | 'place'): LeaseStatement {
  const { table, target, key, order, until } = parts
  const parameter = parameters()
  const where = [
    ...inBucket(parts, parameter),
    `(${table.claimable})`,
    ...(table.availableAt === undefined ? [] : [`${quote(table.availableAt)} <= now()`]),
    ...(table.onExpiry === 'claimable' ? [`(${until} is null or ${until} <= now())`] : []),
    ...(table.exhausted === undefined ? [] : [`(${until} is null or not (${table.exhausted}))`]),
    ...(from === 'place'
      ? [
          `(${list(order.map(({ column }) => column))}) >= (${list(order.map((o) => parameter(o.alias, o.type)))})`,
        ]
      : []),
  ]
  const first = `(${list(key.map((k) => `t.${k.column}`))}) = (select ${list(key.map((k) => k.alias))} from next limit 1)`
  const taken = [...inBucket(parts, parameter, 't.'), ...named(key, 'next')]
  const lease = { ownerValue: parameter('owner', 'text'), leaseMs: parameter('leaseMs', 'float8') }
  return statement(
    from === 'start' ? 'claim' : 'claim_from',
    parameter,
    `
with next as materialized (
  select *
  from (
    select ${list([...key.map((k) => `${k.column} as ${k.alias}`), ...order.map((o) => `${o.column} as ${o.alias}`)])}
    from ${target}
    where ${where.join('\n      and ')}
    order by ${list(order.map((o) => `${o.column} ${o.direction}`))}
    limit ${MAX_BATCH}
    for update skip locked
  ) as candidates
  limit (select ${parameter('limit', 'int')})
)
update ${target} as t
set ${list(claimAssignments(parts, lease))}
where ${taken.join('\n  and ')}
returning
  ${rowId(key.map((k) => `t.${k.column}`))} as "@id",
  ${parts.tokenAfterClaim} as "@token",
  t.${until} as "@until",
  case when ${first} then array(select ${rowId(key.map((k) => k.alias))} from next) end as "@order",
  case when ${first} then (
    select array[${list(order.map((o) => `${o.alias}::text`))}] from next offset (select count(*) - 1 from next)
  ) end as "@place",
  ${list(parts.columns.map((column) => `t.${quote(column)}`))}`,
  )
}

function claimAssignments(parts: Parts, lease: { ownerValue: string; leaseMs: string }): string[] {
  const { table, owner, until, token } = parts
  return [
    `${until} = now() + ${lease.leaseMs} * interval '1 millisecond'`,
    // Grows by one and is never reset (D3); no sequence, so that the statement can go to one shard whole.
    ...(token === undefined
      ? [`${owner} = ${lease.ownerValue} || '${TOKEN_MARK}' || ${CLOCK_TOKEN}`]
      : [`${owner} = ${lease.ownerValue}`, `${token} = coalesce(t.${token}, 0) + 1`]),
    // An expired lease that nobody reaped is an attempt that failed (D4).
    ...(table.attempts === undefined || table.onExpiry !== 'claimable'
      ? []
      : [
          `${quote(table.attempts)} = t.${quote(table.attempts)} + case when t.${until} is null then 0 else 1 end`,
        ]),
    ...assignments(table.writes.claim),
  ]
}

/**
 * Moves `until` forward for every lease that is still ours and alive, and says of each whether it was.
 * A row that somebody else has locked just now (the handler's own transaction, an API call) is skipped rather than
 * waited for, so that one such row cannot starve the renewal of all the others; it is reported as busy.
 */
function renew(parts: Parts): LeaseStatement {
  const { table, target, key, until } = parts
  const parameter = parameters()
  const leases = heldLeases(parts, parameter)
  const held = heldOf(table)
  const bucket = inBucket(parts, parameter, 't.')
  const stillOurs = [
    ...bucket,
    ...ours(parts),
    `t.${until} > now()`,
    // `is true` hides the fragment from the planner, which would leave the key for a partial index on it.
    ...(held === undefined ? [] : [`(${held}) is true`]),
  ].join('\n    and ')
  const keys = list(key.map((k) => `t.${k.column} as ${k.alias}`))
  return statement(
    'renew',
    parameter,
    `
with held as materialized (${leases}),
free as materialized (
  select ${keys}
  from ${target} as t
  where ${stillOurs}
  for no key update skip locked
),
renewed as (
  update ${target} as t
  set ${until} = greatest(t.${until}, now() + ${parameter('leaseMs', 'float8')} * interval '1 millisecond')
  where ${[...bucket, ...named(key, 'free')].join('\n    and ')}
)
select ${rowId(key.map((k) => k.alias))} as "@id", false as "@busy" from free
union all
select ${rowId(key.map((k) => k.alias))}, true
from (
  select ${keys}
  from ${target} as t
  where (select count(*) from free) < (select count(*) from held)
    and ${stillOurs}
) as still_ours
where ((${list(key.map((k) => k.alias))}) in (select * from free)) is not true`,
  )
}

/** Settles or releases: writes what is declared and ends the lease, for the rows that are still ours. */
function endLease(parts: Parts, verb: string, declared: Required<OutcomeDeclaration>): LeaseStatement {
  const { target, key, owner, until } = parts
  const parameter = parameters()
  const id = rowId(key.map((k) => `t.${k.column}`))
  // One JSON object for the batch, looked up by row: a join for the sake of the arguments could turn quadratic.
  const argument = (name: string): string =>
    `(${parameter('args', 'jsonb')} -> ${id} ->> ${quoteLiteral(name)})::${declared.args[name] ?? 'text'}`
  const set = Object.entries(declared.set).map(
    ([column, expression]) => `${quote(column)} = ${replaceArguments(expression, argument)}`,
  )
  return statement(
    verb,
    parameter,
    `
with held as materialized (${heldLeases(parts, parameter)})
update ${target} as t
set ${list([`${owner} = null`, `${until} = null`, ...set])}
where ${[...inBucket(parts, parameter, 't.'), ...ours(parts)].join('\n  and ')}
returning ${id} as "@id"`,
  )
}

/** Takes back expired leases and reports whose they were (RULE-020-021). */
function reap(parts: Parts): LeaseStatement {
  const { table, target, key, owner, until, token } = parts
  const parameter = parameters()
  const held = heldOf(table)
  const expired = [
    ...inBucket(parts, parameter),
    `${owner} is not null`,
    ...(held === undefined ? [] : [`(${held})`]),
    `${until} <= now()`,
  ]
  const set = [
    `${owner} = null`,
    `${until} = null`,
    ...(table.attempts === undefined ? [] : [`${quote(table.attempts)} = t.${quote(table.attempts)} + 1`]),
    ...assignments(table.writes.reap),
  ]
  return statement(
    'reap',
    parameter,
    `
with expired as materialized (
  select ${list(key.map((k) => `${k.column} as ${k.alias}`))}, ${owner} as "@owner",
    ${token === undefined ? 'null' : `${token}::text`} as "@token", ${until} as "@until"
  from ${target}
  where ${expired.join('\n    and ')}
  limit (select ${parameter('limit', 'int')})
  for update skip locked
),
reaped as (
  update ${target} as t
  set ${list(set)}
  where ${[...inBucket(parts, parameter, 't.'), ...named(key, 'expired')].join('\n    and ')}
)
select ${rowId(key.map((k) => k.alias))} as "@id", "@owner", "@token",
  extract(epoch from now() - "@until")::float8 * 1000 as "@staleMs"
from expired`,
  )
}
