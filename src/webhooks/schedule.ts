/** When a failed delivery is attempted again. */
import { LeaseholdError } from '../errors.ts'

const SECOND = 1_000
const MINUTE = 60 * SECOND
const HOUR = 60 * MINUTE

/** The delay after each failed attempt, as Standard Webhooks recommends: ten attempts over 75 hours. */
export const DEFAULT_SCHEDULE: readonly number[] = [
  5 * SECOND,
  5 * MINUTE,
  30 * MINUTE,
  2 * HOUR,
  5 * HOUR,
  10 * HOUR,
  14 * HOUR,
  20 * HOUR,
  24 * HOUR,
]

const MAX_DELAY_MS = 30 * 24 * HOUR

/** The part of a delay that is random, so that deliveries that failed together are not retried together. */
const JITTER = 0.2

/** Throws if a delay is not a number of milliseconds within the limits. */
export function validateSchedule(schedule: readonly number[] = DEFAULT_SCHEDULE): readonly number[] {
  const list: unknown = schedule
  const invalid = Array.isArray(list)
    ? list.findIndex((ms: unknown) => typeof ms !== 'number' || !(ms >= 0 && ms <= MAX_DELAY_MS))
    : 0
  if (invalid === -1) return schedule
  throw new LeaseholdError(
    'SETTING_INVALID',
    `schedule[${invalid}] of the dispatcher is ${String(Array.isArray(list) ? list[invalid] : list)}.`,
    { remedy: `Give a list of delays in milliseconds, each from 0 to ${MAX_DELAY_MS}.` },
  )
}

/** How often a delivery is attempted at most. */
export function maxAttempts(schedule: readonly number[]): number {
  return schedule.length + 1
}

/** The delay after this attempt has failed; undefined if it was the last. */
export function retryDelayMs(
  attempt: number,
  schedule: readonly number[],
  random: () => number,
): number | undefined {
  const delayMs = schedule[attempt - 1]
  // The jitter lies on both sides of the delay, so that the schedule as a whole lasts as long as it says.
  return delayMs === undefined ? undefined : delayMs * (1 + JITTER * (random() - 0.5))
}
