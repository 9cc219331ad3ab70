/**
 * What a handler may return or throw, and what becomes of its row: settled as done, retry, dead or an outcome of the
 * table's own, or released.
 *
 * **Whether a row is dead**: `verdictOn` decides it for what a handler throws, and `retryOrDead` for a retry after the last
 * attempt that the table declares. A handler may also decide by itself and return `dead`, as those of our applications do.
 * Without a handler a row becomes dead by the reap statement, by an operator or by maintenance. The complete table:
 * `docs/architecture.md`, "Where a row becomes dead".
 */
import { inspect } from 'node:util'
import { isSchedule, type RetryPolicy, retryDelay } from '../../lease/retry-policy.ts'
import type { LeaseTable } from '../../lease/table.ts'
import { refuseUnknownOptions } from '../../nearest.ts'
import { describeValue } from '../../rules.ts'
import { MAX_TIMER_MS } from '../../timeout.ts'
import { isDeadOutcome } from '../events.ts'

/** What became of a row, as the handler says it. Every outcome names one of the table's declared outcomes. */
export interface Outcome {
  readonly name: string
  readonly args: Readonly<Record<string, unknown>>
}

const DONE: Outcome = Object.freeze({ name: 'done', args: Object.freeze({}) })

/** The row is finished. */
export function done(args?: Readonly<Record<string, unknown>>): Outcome {
  return args === undefined ? DONE : { name: 'done', args }
}

/** The row is to be retried, after the given time or as the retry policy of its table says. */
export function retry(options: { readonly delayMs?: number; readonly error?: unknown } = {}): Outcome {
  refuseUnknownOptions('retry', options, ['delayMs', 'error'])
  const { error } = options
  // A delay that is not a number, computed from a missing header for example, counts as absent: the policy decides.
  const delayMs = Number.isFinite(options.delayMs) ? options.delayMs : undefined
  return {
    name: 'retry',
    args: { ...(delayMs === undefined ? {} : { delay_ms: delayMs }), error: storedError(error) },
  }
}

/** The row has failed for good; only a replay brings it back. */
export function dead(reason: unknown): Outcome {
  return { name: 'dead', args: { error: storedError(reason) } }
}

/** An outcome that only this table has. */
export function settleAs(name: string, args: Readonly<Record<string, unknown>> = {}): Outcome {
  return { name, args }
}

/** Thrown by a handler: a retry would be pointless, the row is dead. */
export class PermanentError extends Error {
  override readonly name = 'PermanentError'
}

/**
 * Thrown by a handler, or by what it calls: downstream has no room (RULE-020-042). The row is released without
 * counting an attempt, and claiming pauses for this time.
 */
export class SaturatedError extends Error {
  override readonly name = 'SaturatedError'
  readonly forMs: number

  constructor(forMs: number, message = `saturated for ${forMs} ms`) {
    super(message)
    this.forMs = timerMs(forMs)
  }
}

const DEFAULT_SATURATED_MS = 1_000

/** A time that a timer accepts: without a `Retry-After` to go by, a handler may have computed NaN. */
export function timerMs(ms: number): number {
  return Number.isNaN(ms) ? DEFAULT_SATURATED_MS : Math.min(Math.max(0, ms), MAX_TIMER_MS)
}

const MAX_ERROR_CHARACTERS = 4_000

function storedError(error: unknown): string | null {
  return error === undefined || error === null ? null : errorText(error)
}

/** What is stored of a value that was thrown: of an error its name and message, within bounds. */
export function errorText(error: unknown): string {
  const text = shown(error)
  return text.length <= MAX_ERROR_CHARACTERS ? text : `${text.slice(0, MAX_ERROR_CHARACTERS)}…`
}

function shown(error: unknown): string {
  if (typeof error === 'string') return error
  try {
    return error instanceof Error ? `${error.name}: ${error.message}` : inspect(error, { depth: 2 })
  } catch {
    // A `message` or `name` that throws when it is read.
    return `a value of type ${typeof error} that cannot be shown`
  }
}

/** How a handler ended. */
export type HandlerResult =
  | { readonly ended: 'returned'; readonly outcome: Outcome | undefined }
  | { readonly ended: 'threw'; readonly error: unknown }

/** What most handlers return: nothing. One object for all rows, which spares an allocation for each. */
export const RETURNED_NOTHING: HandlerResult = { ended: 'returned', outcome: undefined }

export interface Settle {
  readonly verdict: 'settle'
  readonly outcome: Outcome
  readonly failure: unknown
}

/** What is to become of the row. */
export type Verdict =
  | Settle
  /** Released without counting an attempt. */
  | { readonly verdict: 'release'; readonly saturatedForMs: number }

/** The verdict on `RETURNED_NOTHING`. */
export const SETTLE_AS_DONE: Settle = { verdict: 'settle', outcome: DONE, failure: undefined }

/** What decides between a retry and the end of a row. */
export interface RetryRules {
  /** 1 for the first. */
  readonly attempt: number
  /** After this many failed attempts the row is dead. */
  readonly maxAttempts: number | undefined
  /** A policy, or the delays by attempt. */
  readonly policy: RetryPolicy | readonly number[]
  readonly random: () => number
}

/** Reads the rules from the table's declaration; the maximum may be a column of the row. */
export function retryRulesFor(
  { row, attempt }: { readonly row: object; readonly attempt: number },
  { attempts, retry: policy }: Pick<LeaseTable, 'attempts' | 'retry'>,
  random: () => number,
): RetryRules {
  const max = attempts?.max
  const stored: unknown = typeof max === 'string' ? Reflect.get(row, max) : max
  const maxAttempts = stored === undefined || stored === null ? undefined : Number(stored)
  return { attempt, maxAttempts, policy, random }
}

/**
 * A thrown error is a retry by policy, a `PermanentError` is dead, and a `SaturatedError` is not the row's fault.
 * `isStopping`: the handler was told to stop because the worker stops, so what it threw is not the row's fault either. The
 * row had an attempt (D9), but does not die of it, and another worker may claim it at once.
 */
export function verdictOn(
  result: HandlerResult,
  rules: RetryRules,
  { isStopping }: { readonly isStopping: boolean },
): Verdict {
  if (result.ended === 'returned') {
    if (!isOutcome(result.outcome)) {
      const error = new TypeError(
        `the handler returned ${describeValue(result.outcome)}, which is no outcome: return done(), retry(), dead() or nothing`,
      )
      return verdictOn({ ended: 'threw', error }, rules, { isStopping })
    }
    const outcome = retryOrDead(result.outcome ?? DONE, rules)
    return { verdict: 'settle', outcome, failure: failureOf(outcome) }
  }
  const error = result.error ?? new Error(`the handler threw ${String(result.error)} instead of an error`)
  if (error instanceof SaturatedError) return { verdict: 'release', saturatedForMs: error.forMs }
  if (error instanceof PermanentError) return { verdict: 'settle', outcome: dead(error), failure: error }
  const outcome = isStopping ? retry({ error, delayMs: 0 }) : retryOrDead(retry({ error }), rules)
  return { verdict: 'settle', outcome, failure: error }
}

/** What the outcome says has failed. A row that is dead has failed, also where the handler gave no reason. */
export function failureOf({ name, args }: Outcome): unknown {
  return args['error'] ?? (isDeadOutcome(name) ? new Error('the handler gave no reason') : undefined)
}

/** A retry after the last attempt is dead; one that names no delay gets the policy's. Other outcomes stay as they are. */
export function retryOrDead(outcome: Outcome, { attempt, maxAttempts, policy, random }: RetryRules): Outcome {
  if (outcome.name !== 'retry') return outcome
  if (maxAttempts !== undefined && attempt >= maxAttempts) {
    return { name: 'dead', args: { error: outcome.args['error'] ?? null } }
  }
  if (outcome.args['delay_ms'] !== undefined) return outcome
  const delayMs = isSchedule(policy)
    ? (policy[Math.min(attempt, policy.length) - 1] ?? 0)
    : retryDelay(attempt, policy, random)
  return { name: 'retry', args: { ...outcome.args, delay_ms: delayMs } }
}

/** A handler written without types may return anything. */
function isOutcome(value: unknown): boolean {
  if (value === undefined) return true
  if (typeof value !== 'object' || value === null || !('name' in value) || !('args' in value)) return false
  return typeof value.name === 'string' && typeof value.args === 'object' && value.args !== null
}

/** Whether the handler returned what it had settled in its own transaction, or nothing beyond it. */
export function agrees(result: HandlerResult, settledAs: Outcome): boolean {
  if (result.ended === 'threw') return false
  return result.outcome === undefined || result.outcome.name === settledAs.name
}

/** Outcomes that the worker gives a row by itself; the table may declare arguments of which the worker knows nothing. */
const OWN_OUTCOMES = new Set(['retry', 'dead'])

/** What is wrong with an outcome that a handler returned. It would stop the statement that settles a whole batch. */
export function problemWith(
  { name, args }: Outcome,
  { outcomes }: Pick<LeaseTable, 'outcomes'>,
): string | undefined {
  const declared = outcomes[name]
  if (declared === undefined)
    return `the handler returned the outcome ${name}, which the table does not declare: it has ${Object.keys(outcomes).join(', ')}`
  const missing = OWN_OUTCOMES.has(name)
    ? undefined
    : Object.keys(declared.args).find((argument) => !Object.hasOwn(args, argument))
  return missing === undefined
    ? undefined
    : `the handler returned the outcome ${name} without its argument ${missing}; null is one`
}

/** Arguments that a retry, or a dead row, was not given are null. */
export function withAllArgs(outcome: Outcome, { outcomes }: Pick<LeaseTable, 'outcomes'>): Outcome {
  const missing = Object.keys(outcomes[outcome.name]?.args ?? {}).filter(
    (name) => !Object.hasOwn(outcome.args, name),
  )
  if (missing.length === 0) return outcome
  return {
    name: outcome.name,
    args: { ...Object.fromEntries(missing.map((name) => [name, null])), ...outcome.args },
  }
}
