import { type Assignments, leasedCondition, type LeaseTable, type Outcome, type Sql } from '../lease/table.ts'
import { quoteIdentifier, quoteLiteral } from '../postgres/identifiers.ts'
import type { Transition } from './transitions.ts'

/** The row stays as it is, and is observed once more after a while. */
export const OPEN = 'open'
/** Its status is no longer what it was when it was claimed: what was observed is of no use. */
export const SKIPPED = 'skipped'

export interface ReconciledOptions {
  readonly status: string
  readonly transitions: readonly Transition[]
  /** Columns that an answer may bring values for, with their SQL types. */
  readonly values: Readonly<Record<string, Sql>>
}

const MILLISECOND = "interval '1 millisecond'"

/**
 * The user's table, with what can become of its rows (REC-04, REC-05). Its own outcomes are replaced: an expired lease
 * gets `retry`, so that the row is open at once after the first expiry and rests for the backoff after later ones (D10).
 */
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
  const survived = survivedIn(table)
  const changes = transitions.map(({ from, to, outcome }): [string, Outcome] => [
    outcome,
    {
      when: `${column} = ${quoteLiteral(from)}`,
      otherwise: SKIPPED,
      // A literal is of whatever type the column is: text, an enum, a domain.
      set: { ...set, [status]: quoteLiteral(to), ...survived },
      args,
      rest: undefined,
    },
  ])
  const rested = resting(table)
  const retry = { ...rested, set: { ...rested.set, ...survived } }
  const free: Outcome = { ...NO_CONDITION, set: {}, args: {}, rest: undefined }
  return {
    ...table,
    leased: leasedIn(table),
    attempts: expiriesOf(table),
    outcomes: {
      ...Object.fromEntries(changes),
      [SKIPPED]: { ...free, set: survived },
      [OPEN]: retry,
      // What the worker may say of a row by itself: there is nothing final about it that the observer has not seen.
      done: free,
      retry,
      dead: free,
    },
  }
}

/** An open row with an owner. In these words the index of REC-07, which begins with the status, serves the reaper. */
function leasedIn(table: LeaseTable): Sql {
  const open = leasedCondition(table)
  return `${open === undefined ? '' : `(${open}) and `}${quoteIdentifier(table.lease.owner)} is not null`
}

/** A row is observed as often as it takes: there are no failed attempts to count, only leases that expired. */
function expiriesOf({ attempts }: LeaseTable): LeaseTable['attempts'] {
  if (attempts?.expiries === undefined) return undefined
  return { expiries: attempts.expiries, column: undefined, max: undefined, error: undefined }
}

/**
 * A row is observed for weeks, and deployments and crashes are not its fault: an observation that ends is the proof that
 * the row does not kill its process, and it is no suspect any more.
 */
function survivedIn({ attempts }: LeaseTable): Assignments {
  return attempts?.expiries === undefined ? {} : { [attempts.expiries]: '0' }
}

const NO_CONDITION = { when: undefined, otherwise: undefined }

/** An open row is not claimed for a while: by its own column for that, or by the end of the lease that it had. */
function resting({ availableAt }: LeaseTable): Outcome {
  const args = { delay_ms: 'float8' }
  // A rest of nothing leaves no end of a lease in the row.
  if (availableAt === undefined)
    return { ...NO_CONDITION, set: {}, args, rest: `nullif($delay_ms, 0) * ${MILLISECOND}` }
  return {
    ...NO_CONDITION,
    set: { [availableAt]: `now() + $delay_ms * ${MILLISECOND}` },
    args,
    rest: undefined,
  }
}

/** Names of columns may be anything; names of arguments are words. */
export function argumentOf(column: string): string {
  return `value_${Buffer.from(column).toString('hex')}`
}
