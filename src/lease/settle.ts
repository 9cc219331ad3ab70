import { quoteIdentifier as quote, quoteLiteral } from '../postgres/identifiers.ts'
import { and, type LeaseStatement, type Parameters, parameters, statement, wrapped } from './statement.ts'
import { type OutcomeSql, replaceArguments, type Sql } from './table.ts'
import {
  among,
  assign,
  changedAndBusy,
  idNames,
  inBucket,
  lockHeld,
  rowIdSql,
  type TableSql,
} from './table-sql.ts'

/**
 * Writes the outcome and ends the lease, for the rows that are still ours. A row that is ours and not what the outcome asks
 * for (`when`) is neither settled nor busy: its caller settles it otherwise.
 */
export function settle(t: TableSql, name: string, outcome: OutcomeSql): LeaseStatement {
  const $ = parameters()
  return statement(
    t.table,
    `settle ${name}`,
    $,
    `
with ${settleHeld(t, $, outcome)}
${changedAndBusy(t, $, 'settled', [stillTrue(outcome, argumentsOf(t, $, outcome))])}`,
  )
}

/** Gives rows back as they were; `$delay_ms` says how long they are to wait, in a table that can make them. */
export function release(t: TableSql): LeaseStatement {
  const $ = parameters()
  return statement(
    t.table,
    'release',
    $,
    `
with ${endHeld(t, $, { set: t.table.writes.release }, () => $('delayMs', 'float8'))}
${changedAndBusy(t, $, 'settled', [])}`,
  )
}

/** The CTEs `held` and `ours` (see `lockHeld`), and `settled`: the rows whose lease was ended. */
export function settleHeld(t: TableSql, $: Parameters, outcome: OutcomeSql): string {
  return endHeld(t, $, outcome, argumentsOf(t, $, outcome))
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

function endHeld(
  t: TableSql,
  $: Parameters,
  outcome: Pick<OutcomeSql, 'set'> & Partial<OutcomeSql>,
  argument: ArgumentSql,
): string {
  const { set, rest } = outcome
  const assigned = [
    `${t.owner} = null`,
    assign(t, t.until, rest === undefined ? 'null' : `now() + (${replaceArguments(rest, argument)})`),
    ...Object.entries(set).map(([column, expression]) =>
      assign(t, quote(column), replaceArguments(expression, argument)),
    ),
  ]
  const returned = [idNames(t, 't.'), ...(t.orderingKey === undefined ? [] : [`t.${t.orderingKey.name}`])]
  return `${lockHeld(t, $, [stillTrue(outcome, argument)])},
settled as (
  update ${t.target} as t
  set ${wrapped(assigned, ', ', '    ')}
  where ${and([inBucket(t, $, 't.'), ...among(t, 'ours')], '    ')}
  returning ${wrapped(returned, ', ', '    ')}
)`
}

/** The same for a claim that settles too, and `room`: how many rows it may claim. */
export function settleAndMakeRoom(t: TableSql, $: Parameters, outcome: OutcomeSql): string {
  return `${settleHeld(t, $, outcome)},
room as materialized (              -- a row that was not settled takes up the room that it was to make
  select greatest(0, ${$('limit', 'int')} - (select count(*) from held) + (select count(*) from settled)) as rows
)`
}

/** How many rows a claim may take: as many as its caller says or, where it settles too, as `settleAndMakeRoom` says. */
export function claimLimit($: Parameters, settleAs: OutcomeSql | undefined): Sql {
  return settleAs === undefined ? $('limit', 'int') : '(select rows from room)'
}

/** In the answer of a claim: the settled ids; null: all of them were, which is what mostly happens. */
export function settledFact(t: TableSql): { settled: string } {
  return {
    settled: `case when (select count(*) from settled) < (select count(*) from held)
    then (select coalesce(json_agg(${rowIdSql(t)}), '[]') from settled) end`,
  }
}
