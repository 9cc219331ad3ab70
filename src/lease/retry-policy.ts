import { LeaseholdError } from '../errors.ts'

/** How long a failed row waits for its next attempt. */
export interface RetryPolicy {
  /** The delay after the first failure. */
  readonly firstMs: number
  /** By how much the delay grows with each further failure. */
  readonly factor: number
  readonly longestMs: number
  /** The random share of the delay, from 0 to 1: rows that failed together come back apart. */
  readonly jitter: number
}

export const DEFAULT_RETRY: RetryPolicy = { firstMs: 1_000, factor: 2, longestMs: 3_600_000, jitter: 0.25 }

/** Completes a policy and refuses one that cannot work. */
export function retryPolicy(given: Partial<RetryPolicy> = {}): RetryPolicy {
  const policy = { ...DEFAULT_RETRY, ...given }
  const rules: readonly [keyof RetryPolicy, boolean, string][] = [
    ['firstMs', policy.firstMs >= 0 && Number.isFinite(policy.firstMs), 'a number of milliseconds from 0'],
    ['factor', policy.factor >= 1 && Number.isFinite(policy.factor), 'a number from 1'],
    ['longestMs', policy.longestMs >= policy.firstMs, `at least firstMs (${policy.firstMs})`],
    ['jitter', policy.jitter >= 0 && policy.jitter <= 1, 'a number from 0 to 1'],
  ]
  const broken = rules.filter(([, holds]) => !holds)
  if (broken.length === 0) return policy
  const listed = broken.map(([name, , rule]) => `retry.${name} is ${policy[name]}, but must be ${rule}`)
  throw new LeaseholdError('SETTING_INVALID', `The retry policy cannot work: ${listed.join('; ')}.`)
}

/** The delay after this many failed attempts. Jitter only shortens it, so that `longestMs` is never exceeded. */
export function retryDelay(attempt: number, policy: RetryPolicy, random: () => number): number {
  // A first delay of 0 stays 0, also when the factor has grown to infinity.
  const grown = policy.firstMs * Math.min(Number.MAX_VALUE, policy.factor ** Math.max(0, attempt - 1))
  return Math.min(policy.longestMs, grown) * (1 - policy.jitter * random())
}

/** No policy needs more steps to reach its longest delay, and no attempt counter is worth more. */
const MAX_STEPS = 64

/** The delays of a policy without jitter, by attempt, up to the step from which they no longer change. */
export function backoffSteps(policy: RetryPolicy): number[] {
  const steps: number[] = []
  for (let attempt = 1; attempt <= MAX_STEPS; attempt += 1) {
    const delay = retryDelay(attempt, policy, () => 0)
    if (delay === steps.at(-1)) break
    steps.push(delay)
  }
  return steps
}

/** Whether failed rows wait as a list of delays says, one for each attempt, and not by a policy. */
export function isSchedule(
  retry: Partial<RetryPolicy> | readonly number[] | undefined,
): retry is readonly number[] {
  return Array.isArray(retry)
}
