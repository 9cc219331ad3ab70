import { LeaseholdError } from '../errors.ts'

/** How long a failed row waits before it is tried again. */
export interface RetryPolicy {
  /** After the first failure. */
  readonly firstMs: number
  /** By how much the wait grows with each further failure. */
  readonly factor: number
  readonly longestMs: number
  /** The share of the wait that is left to chance, from 0 to 1: rows that failed together come back apart. */
  readonly jitter: number
  /** A row that has failed so often is dead. `undefined`: the table decides, or nobody. */
  readonly maxAttempts: number | undefined
}

export const DEFAULT_RETRY: RetryPolicy = {
  firstMs: 1_000,
  factor: 2,
  longestMs: 3_600_000,
  jitter: 0.25,
  maxAttempts: undefined,
}

/** Completes a policy and refuses one that cannot work. */
export function retryPolicy(given: Partial<RetryPolicy> = {}): RetryPolicy {
  const policy = { ...DEFAULT_RETRY, ...given }
  const rules: readonly [keyof RetryPolicy, boolean, string][] = [
    ['firstMs', policy.firstMs >= 0 && Number.isFinite(policy.firstMs), 'a number of milliseconds from 0'],
    ['factor', policy.factor >= 1 && Number.isFinite(policy.factor), 'a number from 1'],
    ['longestMs', policy.longestMs >= policy.firstMs, `at least firstMs (${policy.firstMs})`],
    ['jitter', policy.jitter >= 0 && policy.jitter <= 1, 'a number from 0 to 1'],
    [
      'maxAttempts',
      policy.maxAttempts === undefined || (Number.isInteger(policy.maxAttempts) && policy.maxAttempts >= 1),
      'a whole number from 1',
    ],
  ]
  const broken = rules.filter(([, kept]) => !kept)
  if (broken.length === 0) return policy
  const listed = broken.map(([name, , rule]) => `retry.${name} is ${policy[name]}, but must be ${rule}`)
  throw new LeaseholdError('SETTING_INVALID', `The retry policy cannot work: ${listed.join('; ')}.`)
}

/** The wait after so many attempts. The jitter shortens it, so that the longest wait is never exceeded. */
export function retryDelay(attempt: number, policy: RetryPolicy, random: () => number): number {
  // A first wait of 0 stays 0, also when the factor has grown beyond all numbers.
  const grown = policy.firstMs * Math.min(Number.MAX_VALUE, policy.factor ** Math.max(0, attempt - 1))
  return Math.min(policy.longestMs, grown) * (1 - policy.jitter * random())
}
