/** The verbs that act on leases already held: renew, settle, release, reap. */
import { quoteIdentifier as quote, quoteLiteral } from '../postgres/identifiers.ts'
import {
  assignments,
  heldLeases,
  inBucket,
  list,
  named,
  ours,
  type Parts,
  rowId,
  TOKEN_MARK,
} from './parts.ts'
import { leasedByNotes, leasedNow } from './note-sql.ts'
import { advance, followers, leftLine, linesOf, lookAgain } from './line-sql.ts'
import { type LeaseStatement, type Parameters, parameters, statement } from './statement.ts'
import { heldOf, type Outcome, replaceArguments } from './table.ts'

/**
 * Moves `until` forward for every lease that is still ours and alive, and says of each whether it was.
 * A row that somebody else has locked just now (the handler's own transaction, an API call) is skipped rather than
 * waited for, so that one such row cannot starve the renewal of all the others; it is reported as busy.
 */
export function renew(parts: Parts): LeaseStatement {
  const { table, target, key, until } = parts
  const parameter = parameters()
  const leases = heldLeases(parts, parameter)
  const held = heldOf(table)
  const bucket = inBucket(parts, parameter, 't.')
  const stillOurs = [
    ...bucket,
    ...ours(parts, parameter),
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

/** Writes the outcome and ends the lease, for the rows that are still ours. */
export function settle(parts: Parts, outcome: string, declared: Outcome): LeaseStatement {
  const parameter = parameters()
  const lines = linesOf(parts)
  const held = `held as materialized (${heldLeases(parts, parameter)})`
  const update = settleUpdate(parts, parameter, declared)
  return statement(
    `settle_${outcome}`,
    parameter,
    lines === undefined
      ? `
with ${held}
${update}`
      : `
with ${held},
settled as (
${update}
),
${followers(parts, lines, parameter, 'settled', false)},
${advance(parts, lines, parameter)}
select "@id", (select count(*) from locked)::int as "@advanced",
  case when row_number() over () = 1 then ${lookAgain()} end as "@again"
from settled`,
  )
}

export function settleUpdate(parts: Parts, parameter: Parameters, declared: Outcome): string {
  const id = rowId(parts.key.map((k) => `t.${k.column}`))
  // One JSON object for the batch, looked up by row: a join for the sake of the arguments could turn quadratic.
  const argument = (name: string): string =>
    `(${parameter('args', 'jsonb')} -> ${id} ->> ${quoteLiteral(name)})::${declared.args[name] ?? 'text'}`
  const lines = linesOf(parts)
  const left = lines === undefined ? '' : `,\n  ${leftLine(lines)}`
  return endUpdate(parts, parameter, declared, argument) + left
}

/** Gives rows back as they were; `$delay_ms` says how long they are to wait, in a table that can make them. */
export function release(parts: Parts): LeaseStatement {
  const parameter = parameters()
  return statement(
    'release',
    parameter,
    `
with held as materialized (${heldLeases(parts, parameter)})
${endUpdate(parts, parameter, { set: parts.table.writes.release }, () => parameter('delayMs', 'float8'))}`,
  )
}

function endUpdate(
  parts: Parts,
  parameter: Parameters,
  { set, when, rest }: Pick<Outcome, 'set'> & Partial<Outcome>,
  argument: (name: string) => string,
): string {
  const { target, key, owner, until } = parts
  const restUntil = rest === undefined ? 'null' : `now() + (${replaceArguments(rest, argument)})`
  const stillTrue = when === undefined ? [] : [`(${replaceArguments(when, argument)}) is true`]
  const written = Object.entries(set).map(
    ([column, expression]) => `${quote(column)} = ${replaceArguments(expression, argument)}`,
  )
  return `update ${target} as t
set ${list([`${owner} = null`, `${until} = ${restUntil}`, ...written])}
where ${[...inBucket(parts, parameter, 't.'), ...ours(parts, parameter), ...stillTrue].join('\n  and ')}
returning ${rowId(key.map((k) => `t.${k.column}`))} as "@id"`
}

/**
 * Takes back leases and reports whose they were (RULE-020-021): those that are over, or all of one owner that is known
 * to be dead, however long they would still run. Fencing makes the second as safe as the first.
 */
export function reap(parts: Parts, which: 'expired' | 'ownedBy'): LeaseStatement {
  const { table, target, key, owner, until, token, notes } = parts
  const parameter = parameters()
  const lines = linesOf(parts)
  const leased = leasedNow(parts)
  const expired = [
    ...inBucket(parts, parameter),
    ...(notes === undefined ? [] : [`${key[0]?.column ?? ''} = any (array(select "@k1" from leased))`]),
    ...leased,
    which === 'expired' ? `${until} <= now()` : ownedBy(parts, parameter('ownedBy', 'text')),
  ]
  const set = [
    `${owner} = null`,
    `${until} = null`,
    ...(table.attempts === undefined
      ? []
      : [`${quote(table.attempts)} = coalesce(t.${quote(table.attempts)}, 0) + 1`]),
    ...assignments(table.writes.reap),
  ]
  return statement(
    `reap_${which}`,
    parameter,
    `
with ${notes === undefined ? '' : leasedByNotes(parts, parameter, notes.target, leased)}expired as materialized (
  select ${list(key.map((k) => `${k.column} as ${k.alias}`))}, ${owner} as "@owner",
    ${token === undefined ? 'null' : `${token}::text`} as "@token", ${until} as "@until"
  from ${target}
  where ${expired.join('\n    and ')}
  order by ${list(key.map((k) => k.column))}
  limit (select ${parameter('limit', 'int')})
  for update skip locked
),
reaped as (
  update ${target} as t
  set ${list(set)}
  where ${[...inBucket(parts, parameter, 't.'), ...named(key, 'expired')].join('\n    and ')}${
    lines === undefined
      ? `
)`
      : `
  returning ${leftLine(lines)}
),
${followers(parts, lines, parameter, 'reaped', false)},
${advance(parts, lines, parameter)}`
  }
select ${rowId(key.map((k) => k.alias))} as "@id", "@owner", "@token",
  greatest(0, extract(epoch from now() - "@until")::float8 * 1000) as "@staleMs"${
    lines === undefined ? '' : `,\n  case when row_number() over () = 1 then ${lookAgain()} end as "@again"`
  }
from expired`,
  )
}

function ownedBy({ owner, token }: Parts, dead: string): string {
  if (token !== undefined) return `${owner} = ${dead}`
  return `regexp_replace(${owner}, '${TOKEN_MARK}[0-9]+$', '') = ${dead}`
}
