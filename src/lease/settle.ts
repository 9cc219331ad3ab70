import { quoteIdentifier as quote, quoteLiteral } from '../postgres/identifiers.ts'
import { and, type LeaseStatement, type Parameters, parameters, statement, wrapped } from './statement.ts'
import { type OutcomeSql, replaceArguments, type Sql } from './table.ts'
import { among, assign, held, inBucket, lockHeld, rowIdSql, type TableSql } from './table-sql.ts'

/** A statement that changes the rows of a batch, and one that tells which of the others are still leased by it. */
export interface BatchStatements {
  /** Returns the ids of the rows that it has changed. */
  readonly change: LeaseStatement
  /** Returns the ids of rows that are still ours. Of those that were not changed they are locked; the others are lost. */
  readonly held: LeaseStatement
}

/**
 * Writes the outcome and ends the lease, for the rows that are still ours. A row that is ours and not what the outcome asks
 * for (`when`) is neither settled nor locked: its caller settles it otherwise.
 */
export function settle(t: TableSql, name: string, outcome: OutcomeSql): BatchStatements {
  const still = ($: Parameters): string[] => [stillTrue(outcome, argumentsOf(t, $, outcome))]
  const $ = parameters()
  return {
    change: end(t, `settle ${name}`, $, outcome, argumentsOf(t, $, outcome)),
    held: held(t, outcome.when === undefined ? 'held' : `held ${name}`, still),
  }
}

/** Gives rows back as they were; `$delay_ms` says how long they are to wait, in a table that can make them. */
export function release(t: TableSql): BatchStatements {
  const $ = parameters()
  return {
    change: end(t, 'release', $, { set: t.table.writes.release }, () => $('delayMs', 'float8')),
    held: held(t, 'held', () => []),
  }
}

type ArgumentSql = (name: string) => Sql

/** One JSON object for the batch, read by row: a join for the sake of the arguments could turn quadratic. */
function argumentsOf(t: TableSql, $: Parameters, { args }: OutcomeSql): ArgumentSql {
  const id = rowIdSql(t, 't.')
  return (name) => `(${$('args', 'jsonb')} -> ${id} ->> ${quoteLiteral(name)})::${args[name] ?? 'text'}`
}

/** What the outcome asks of the row besides that it is ours. */
function stillTrue({ when }: Partial<OutcomeSql>, argument: ArgumentSql): Sql {
  return when === undefined ? '' : `(${replaceArguments(when, argument)}) is true`
}

function end(
  t: TableSql,
  purpose: string,
  $: Parameters,
  outcome: Pick<OutcomeSql, 'set'> & Partial<OutcomeSql>,
  argument: ArgumentSql,
): LeaseStatement {
  const { set, rest } = outcome
  const assigned = [
    `${t.owner} = null`,
    assign(t, t.until, rest === undefined ? 'null' : `now() + (${replaceArguments(rest, argument)})`),
    ...Object.entries(set).map(([column, expression]) =>
      assign(t, quote(column), replaceArguments(expression, argument)),
    ),
  ]
  return statement(
    t.table,
    purpose,
    $,
    `
with ${lockHeld(t, $, [stillTrue(outcome, argument)])}
update ${t.target} as t
set ${wrapped(assigned, ', ', '  ')}
where ${and([inBucket(t, $, 't.'), ...among(t, 'ours')], '  ')}
returning ${rowIdSql(t, 't.')}`,
  )
}
