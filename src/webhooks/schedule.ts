import { LeaseholdError } from '../errors.ts'

const SECOND = 1_000
const MINUTE = 60 * SECOND
const HOUR = 60 * MINUTE

/** How long to wait after each failed attempt, as Standard Webhooks proposes it: ten attempts over 75 hours. */
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

const LONGEST_WAIT_MS = 30 * 24 * HOUR

/** The share of a wait that is left to chance: what failed together comes back apart. */
const JITTER = 0.2

/** Refuses waits that are none. */
export function usableSchedule(schedule: readonly number[] = DEFAULT_SCHEDULE): readonly number[] {
  const list: unknown = schedule
  const broken = Array.isArray(list)
    ? list.findIndex((ms: unknown) => typeof ms !== 'number' || !(ms >= 0 && ms <= LONGEST_WAIT_MS))
    : 0
  if (broken === -1) return schedule
  throw new LeaseholdError(
    'SETTING_INVALID',
    `schedule[${broken}] of the dispatcher is ${String(Array.isArray(list) ? list[broken] : list)}.`,
    { remedy: `Give a list of waits in milliseconds, each from 0 to ${LONGEST_WAIT_MS}.` },
  )
}

/** How often a delivery is attempted at most. */
export function attemptsOf(schedule: readonly number[]): number {
  return schedule.length + 1
}

/** The wait after this attempt has failed; `undefined`: it was the last. */
export function waitAfter(
  attempt: number,
  schedule: readonly number[],
  random: () => number,
): number | undefined {
  const wait = schedule[attempt - 1]
  // Around the wait rather than below it, so that the whole lasts as long as the schedule says.
  return wait === undefined ? undefined : wait * (1 + JITTER * (random() - 0.5))
}
