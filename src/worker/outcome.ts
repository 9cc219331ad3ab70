import { inspect } from 'node:util'

/** What became of a row, as the handler says it. Every outcome names one of the table's declared outcomes. */
export interface Outcome {
  readonly outcome: string
  readonly args: Readonly<Record<string, unknown>>
}

const DONE: Outcome = Object.freeze({ outcome: 'done', args: Object.freeze({}) })

/** The row is finished. */
export function done(args?: Readonly<Record<string, unknown>>): Outcome {
  return args === undefined ? DONE : { outcome: 'done', args }
}

/** The row is to be tried again, after the given time or as the back-off of its table says. */
export function retry(options: { readonly delayMs?: number; readonly error?: unknown } = {}): Outcome {
  const { error } = options
  // A delay that is no number (a header that was missing, say) is none: the policy decides.
  const delayMs = Number.isFinite(options.delayMs) ? options.delayMs : undefined
  return {
    outcome: 'retry',
    args: { ...(delayMs === undefined ? {} : { delay_ms: delayMs }), error: errorText(error) },
  }
}

/** The row has failed for good; only a replay brings it back. */
export function dead(reason: unknown): Outcome {
  return { outcome: 'dead', args: { error: errorText(reason) } }
}

/** An outcome that only this table has. */
export function settleAs(outcome: string, args: Readonly<Record<string, unknown>> = {}): Outcome {
  return { outcome, args }
}

/** Thrown by a handler: trying again is pointless, the row is dead. */
export class PermanentError extends Error {
  override readonly name = 'PermanentError'
}

/**
 * Thrown by a handler, or by what it calls: downstream has no room (RULE-020-042). The row is given back without
 * counting an attempt, and claiming pauses for so long.
 */
export class SaturatedError extends Error {
  override readonly name = 'SaturatedError'
  readonly forMs: number

  constructor(forMs: number, message = `saturated for ${forMs} ms`) {
    super(message)
    this.forMs = usableMs(forMs)
  }
}

const DEFAULT_SATURATED_MS = 1_000
const LONGEST_TIMER_MS = 2_147_483_647

/** A time that a timer takes: without a `Retry-After` to go by, somebody may have computed NaN. */
export function usableMs(ms: number): number {
  return Number.isNaN(ms) ? DEFAULT_SATURATED_MS : Math.min(Math.max(0, ms), LONGEST_TIMER_MS)
}

const LONGEST_ERROR = 4_000

/** What is kept of an error in the row: its message and where it came from, within bounds. */
function errorText(error: unknown): string | null {
  if (error === undefined || error === null) return null
  const text =
    error instanceof Error
      ? `${error.name}: ${error.message}`
      : typeof error === 'string'
        ? error
        : inspect(error, { depth: 2 })
  return text.length <= LONGEST_ERROR ? text : `${text.slice(0, LONGEST_ERROR)}…`
}
