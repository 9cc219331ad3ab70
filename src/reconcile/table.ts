import type { Assignments, LeaseTable, Outcome, Sql } from '../lease/table.ts'
import { quoteIdentifier, quoteLiteral } from '../postgres/identifiers.ts'
import type { Transition } from './transitions.ts'

/** The row stays as it is, and is looked at again after a while. */
export const OPEN = 'open'
/** Its status is no longer what it was when it was claimed: what was observed is of no use. */
export const SKIPPED = 'skipped'

export interface ReconciledOptions {
  readonly status: string
  readonly transitions: readonly Transition[]
  /** Columns that an answer may bring values for, with their SQL types. */
  readonly values: Readonly<Record<string, Sql>>
}

const DELAY = "$delay_ms * interval '1 millisecond'"

/** The user's table, with what can become of its rows (REC-04, REC-05). */
export function reconciledTable(
  table: LeaseTable,
  { status, transitions, values }: ReconciledOptions,
): LeaseTable {
  const column = quoteIdentifier(status)
  const args = Object.fromEntries(
    Object.keys(values).map((name) => [argumentOf(name), values[name] ?? 'text']),
  )
  // What the answer says nothing of stays.
  const set: Assignments = Object.fromEntries(
    Object.keys(values).map((name) => [name, `coalesce($${argumentOf(name)}, ${quoteIdentifier(name)})`]),
  )
  const changes = transitions.map(({ from, to, outcome }): [string, Outcome] => [
    outcome,
    {
      when: `${column} = ${quoteLiteral(from)}`,
      otherwise: SKIPPED,
      // A literal is of whatever type the column is: text, an enum, a domain.
      set: { ...set, [status]: quoteLiteral(to) },
      args,
      rest: undefined,
    },
  ])
  const open = resting(table)
  return {
    ...table,
    outcomes: {
      ...Object.fromEntries(changes),
      [SKIPPED]: { set: {}, args: {}, when: undefined, otherwise: undefined, rest: undefined },
      [OPEN]: open,
      // What the runtime may say of a row by itself: there is nothing final about it that the observer has not seen.
      done: { ...open, set: {}, args: {}, rest: undefined },
      retry: open,
      dead: { ...open, set: {}, args: {}, rest: undefined },
    },
  }
}

/** An open row is left alone for a while: by its own column for that, or where the end of its lease stood. */
function resting({ availableAt }: LeaseTable): Outcome {
  const args = { delay_ms: 'float8' }
  const none = { when: undefined, otherwise: undefined }
  if (availableAt === undefined) return { set: {}, args, rest: DELAY, ...none }
  return { set: { [availableAt]: `now() + ${DELAY}` }, args, rest: undefined, ...none }
}

/** Names of columns may be anything; names of arguments are words. */
export function argumentOf(column: string): string {
  return `value_${Buffer.from(column).toString('hex')}`
}
