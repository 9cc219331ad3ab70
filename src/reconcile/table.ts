import {
  type Assignments,
  leasedCondition,
  type LeaseTable,
  type OutcomeSql,
  type Sql,
} from '../lease/table.ts'
import { quoteIdentifier, quoteLiteral } from '../postgres/identifiers.ts'
import type { Transition } from './transitions.ts'

/** The outcome of a row that stays as it is and is observed later. */
export const OPEN = 'open'
/** The outcome of a row whose status has changed since it was claimed: the observation is discarded. */
export const SKIPPED = 'skipped'

export interface ReconciledOptions {
  readonly status: string
  readonly transitions: readonly Transition[]
  /** Columns that an answer may contain values for, with their SQL types. */
  readonly values: Readonly<Record<string, Sql>>
}

const MILLISECOND = "interval '1 millisecond'"

/**
 * The user's table with the outcomes of a reconciler (REC-04, REC-05) instead of its own. An expired lease gets `retry`:
 * after the first expiry the row can be claimed at once, after later ones it waits for the backoff (D10).
 */
export function reconciledTable(
  table: LeaseTable,
  { status, transitions, values }: ReconciledOptions,
): LeaseTable {
  const column = quoteIdentifier(status)
  const args = Object.fromEntries(
    Object.keys(values).map((name) => [argumentOf(name), values[name] ?? 'text']),
  )
  // A column for which the answer has no value stays as it is.
  const set: Assignments = Object.fromEntries(
    Object.keys(values).map((name) => [name, `coalesce($${argumentOf(name)}, ${quoteIdentifier(name)})`]),
  )
  const resetExpiries = expiriesReset(table)
  const changes = transitions.map(({ from, to, outcome }): [string, OutcomeSql] => [
    outcome,
    {
      when: `${column} = ${quoteLiteral(from)}`,
      otherwise: SKIPPED,
      // An untyped literal takes the type of the column: text, an enum, a domain.
      set: { ...set, [status]: quoteLiteral(to), ...resetExpiries },
      args,
      rest: undefined,
    },
  ])
  const waited = waiting(table)
  const retry = { ...waited, set: { ...waited.set, ...resetExpiries } }
  const unleased: OutcomeSql = { ...NO_CONDITION, set: {}, args: {}, rest: undefined }
  return {
    ...table,
    leased: leasedIn(table),
    attempts: expiriesOf(table),
    outcomes: {
      ...Object.fromEntries(changes),
      [SKIPPED]: { ...unleased, set: resetExpiries },
      [OPEN]: retry,
      // Outcomes that the worker itself may choose. They clear the lease and nothing else: only an observation ends a row.
      done: unleased,
      retry,
      dead: unleased,
    },
  }
}

/** An open row with an owner. Written like this, the index of REC-07, which begins with the status, serves the reaper. */
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
 * A row is observed for weeks, and deployments and crashes are not its fault. An observation that ends proves that the row
 * does not kill its process, so the row is no longer a suspect.
 */
function expiriesReset({ attempts }: LeaseTable): Assignments {
  return attempts?.expiries === undefined ? {} : { [attempts.expiries]: '0' }
}

const NO_CONDITION = { when: undefined, otherwise: undefined }

/** An open row waits for its next claim: by its own column for that, or else by a lease end without an owner. */
function waiting({ availableAt }: LeaseTable): OutcomeSql {
  const args = { delay_ms: 'float8' }
  // A wait of 0 leaves no lease end in the row.
  if (availableAt === undefined)
    return { ...NO_CONDITION, set: {}, args, rest: `nullif($delay_ms, 0) * ${MILLISECOND}` }
  return {
    ...NO_CONDITION,
    set: { [availableAt]: `now() + $delay_ms * ${MILLISECOND}` },
    args,
    rest: undefined,
  }
}

/** A column name may contain any character; an argument name has to be a word. */
export function argumentOf(column: string): string {
  return `value_${Buffer.from(column).toString('hex')}`
}
