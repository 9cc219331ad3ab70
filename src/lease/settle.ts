import { quoteIdentifier as quote, quoteLiteral } from '../postgres/identifiers.ts'
import { and, type LeaseStatement, type Parameters, parameters, statement, wrapped } from './statement.ts'
import { type Assignments, type Outcome, replaceArguments, type Sql } from './table.ts'
import { among, fenced, heldLeases, inBucket, keyNames, rowIdSql, type TableSql } from './table-sql.ts'

/** Writes the outcome and ends the lease, for the rows that are still ours. */
export function settle(t: TableSql, name: string, outcome: Outcome): LeaseStatement {
  const $ = parameters()
  return statement(
    t.table,
    `settle ${name}`,
    $,
    `
with ${settleHeld(t, $, name === 'retry' ? { ...outcome, set: survived(t, outcome.set) } : outcome)}
${answerEnded(t, $, stillTrue(outcome, argumentsOf(t, $, outcome)))}`,
  )
}

/** A row whose handler came back with a failure did not kill its process: it is no suspect. */
function survived({ table }: TableSql, set: Assignments): Assignments {
  const expiries = table.attempts?.expiries
  return expiries === undefined ? set : { [expiries]: '0', ...set }
}

/** Gives rows back as they were; `$delay_ms` says how long they are to wait, in a table that can make them. */
export function release(t: TableSql): LeaseStatement {
  const $ = parameters()
  const { release: set } = t.table.writes
  return statement(
    t.table,
    'release',
    $,
    `
with ${endHeld(t, $, { set }, () => $('delayMs', 'float8'))}
${answerEnded(t, $)}`,
  )
}

/** The CTEs `held` (the batch), `ours` (those of it that still are, and are not locked) and `settled`. */
export function settleHeld(t: TableSql, $: Parameters, outcome: Outcome): string {
  return endHeld(t, $, outcome, argumentsOf(t, $, outcome))
}

type ArgumentSql = (name: string) => Sql

/** One JSON object for the batch, read by row: a join for the sake of the arguments could turn quadratic. */
function argumentsOf(t: TableSql, $: Parameters, { args }: Outcome): ArgumentSql {
  const id = rowIdSql(t, 't.')
  return (name) => `(${$('args', 'jsonb')} -> ${id} ->> ${quoteLiteral(name)})::${args[name] ?? 'text'}`
}

/** What the outcome asks of the row besides that it is ours. */
function stillTrue({ when }: Partial<Outcome>, argument: ArgumentSql): Sql {
  return when === undefined ? '' : `(${replaceArguments(when, argument)}) is true`
}

function endHeld(
  t: TableSql,
  $: Parameters,
  outcome: Pick<Outcome, 'set'> & Partial<Outcome>,
  argument: ArgumentSql,
): string {
  const { set, rest } = outcome
  const assigned = [
    `${t.owner} = null`,
    `${t.until} = ${rest === undefined ? 'null' : `now() + (${replaceArguments(rest, argument)})`}`,
    ...Object.entries(set).map(
      ([column, expression]) => `${quote(column)} = ${replaceArguments(expression, argument)}`,
    ),
  ]
  const returned = [keyNames(t, 't.'), ...(t.orderingKey === undefined ? [] : [`t.${t.orderingKey.name}`])]
  return `held as materialized (
  ${heldLeases(t, $)}
),
ours as materialized (              -- a row that another session has locked is skipped, and reported as busy
  select ${keyNames(t, 't.')}
  from ${t.target} as t
  where ${and([...fenced(t, $), stillTrue(outcome, argument)], '    ')}
  for no key update skip locked
),
settled as (
  update ${t.target} as t
  set ${wrapped(assigned, ', ', '    ')}
  where ${and([inBucket(t, $, 't.'), ...among(t, 'ours')], '    ')}
  returning ${wrapped(returned, ', ', '    ')}
)`
}

/**
 * Each row of the batch that was settled, and each that is still ours but locked by another session. A row that is ours
 * and not what the outcome asks for is neither: its caller settles it otherwise.
 */
function answerEnded(t: TableSql, $: Parameters, condition = ''): string {
  const isBusy = `((${keyNames(t, 't.')}) in (select ${keyNames(t)} from ours)) is not true`
  return `select ${rowIdSql(t)} as id, false as busy from settled
union all
select ${rowIdSql(t, 't.')}, true
from ${t.target} as t
where ${and([`(select count(*) from ours) < (select count(*) from held)`, ...fenced(t, $), condition, isBusy], '  ')}`
}

/** The same in the answer of a claim: the settled ids; null: all of them were, which is what mostly happens. */
export function settledFact(t: TableSql): { settled: string } {
  return {
    settled: `case when (select count(*) from settled) < (select count(*) from held)
    then (select coalesce(json_agg(${rowIdSql(t)}), '[]') from settled) end`,
  }
}
