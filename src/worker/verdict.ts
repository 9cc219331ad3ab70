import { type RetryPolicy, retryDelay } from '../lease/retry-policy.ts'
import type { LeaseTable } from '../lease/table.ts'
import { dead, done, type Outcome, PermanentError, retry, SaturatedError } from './outcome.ts'

/** How a handler ended. */
export type HandlerResult =
  | { readonly ended: 'returned'; readonly outcome: Outcome | undefined }
  | { readonly ended: 'threw'; readonly error: unknown }

/** The way of most rows: the handler returned nothing. Made once, and not for each of them. */
export const RETURNED: HandlerResult = { ended: 'returned', outcome: undefined }

export interface Settle {
  readonly verdict: 'settle'
  readonly outcome: Outcome
  readonly failure: unknown
}

/** What is to become of the row. */
export type Verdict =
  | Settle
  /** Given back without counting an attempt. */
  | { readonly verdict: 'release'; readonly saturatedForMs: number }

/** The verdict on that. */
export const DONE: Settle = { verdict: 'settle', outcome: done(), failure: undefined }

export interface Circumstances {
  readonly attempt: number
  /** After this many failed attempts the row is dead. */
  readonly maxAttempts: number | undefined
  /** A policy, or the delays by attempt. */
  readonly policy: RetryPolicy | readonly number[]
  readonly random: () => number
  /** The handler was told to stop because the worker has to; what it threw then is not the row's fault. */
  readonly cutShort: boolean
}

/** A thrown error is a retry by policy, a `PermanentError` is dead, a `SaturatedError` is nobody's fault. */
export function verdictOn(result: HandlerResult, circumstances: Circumstances): Verdict {
  if (result.ended === 'returned' && !isOutcome(result.outcome)) {
    const error = new TypeError(
      'the handler returned something that is no outcome: return done(), retry(), dead() or nothing',
    )
    return verdictOn({ ended: 'threw', error }, circumstances)
  }
  if (result.ended === 'returned') {
    const outcome = result.outcome ?? done()
    return {
      verdict: 'settle',
      outcome: byPolicy(outcome, circumstances),
      failure: outcome.args['error'] ?? undefined,
    }
  }
  const { error } = result
  if (error instanceof SaturatedError) return { verdict: 'release', saturatedForMs: error.forMs }
  const outcome = error instanceof PermanentError ? dead(error) : afterFailure(error, circumstances)
  return { verdict: 'settle', outcome, failure: error }
}

/** A row that was cut short by a shutdown had an attempt (D9), but does not die of it; another worker may have it at once. */
function afterFailure(error: unknown, circumstances: Circumstances): Outcome {
  return circumstances.cutShort ? retry({ error, delayMs: 0 }) : byPolicy(retry({ error }), circumstances)
}

/** What a handler written without types returns may be anything. */
function isOutcome(value: unknown): boolean {
  if (value === undefined) return true
  if (typeof value !== 'object' || value === null || !('outcome' in value) || !('args' in value)) return false
  return typeof value.outcome === 'string' && typeof value.args === 'object' && value.args !== null
}

/** A retry that is one too many is dead; one that names no delay gets the policy's. */
export function byPolicy(
  outcome: Outcome,
  { attempt, maxAttempts, policy, random }: Omit<Circumstances, 'cutShort'>,
): Outcome {
  if (outcome.outcome !== 'retry') return outcome
  if (maxAttempts !== undefined && attempt >= maxAttempts) {
    return { outcome: 'dead', args: { error: outcome.args['error'] ?? null } }
  }
  if (outcome.args['delay_ms'] !== undefined) return outcome
  return { outcome: 'retry', args: { ...outcome.args, delay_ms: delayAfter(attempt, policy, random) } }
}

function delayAfter(attempt: number, policy: Circumstances['policy'], random: () => number): number {
  if (!isSchedule(policy)) return retryDelay(attempt, policy, random)
  return policy[Math.min(attempt, policy.length) - 1] ?? 0
}

function isSchedule(policy: Circumstances['policy']): policy is readonly number[] {
  return Array.isArray(policy)
}

/** Whether what the handler returned is what it had settled in its own transaction, or nothing beyond it. */
export function agrees(result: HandlerResult, settledAs: Outcome): boolean {
  if (result.ended === 'threw') return false
  return result.outcome === undefined || result.outcome.outcome === settledAs.outcome
}

/** Outcomes that the worker gives a row by itself; the table may want to know more than the worker can say. */
const OWN_OUTCOMES = new Set(['retry', 'dead'])

/** What is wrong with an outcome that a handler returned. It would stop the statement that settles a whole batch. */
export function problemWith(
  { outcome, args }: Outcome,
  { outcomes }: Pick<LeaseTable, 'outcomes'>,
): string | undefined {
  const declared = outcomes[outcome]
  if (declared === undefined)
    return `the handler returned the outcome ${outcome}, which the table does not declare: it has ${Object.keys(outcomes).join(', ')}`
  const missing = OWN_OUTCOMES.has(outcome)
    ? undefined
    : Object.keys(declared.args).find((name) => !Object.hasOwn(args, name))
  return missing === undefined
    ? undefined
    : `the handler returned the outcome ${outcome} without its argument ${missing}; null is one`
}

/** What nobody said of a retry, or of a row that is dead, is null. */
export function complete(outcome: Outcome, { outcomes }: Pick<LeaseTable, 'outcomes'>): Outcome {
  const missing = Object.keys(outcomes[outcome.outcome]?.args ?? {}).filter(
    (name) => !Object.hasOwn(outcome.args, name),
  )
  if (missing.length === 0) return outcome
  return {
    outcome: outcome.outcome,
    args: { ...Object.fromEntries(missing.map((name) => [name, null])), ...outcome.args },
  }
}
