import type { Timing } from '../lease/timing.ts'

/**
 * By when each step of a stop ends. All are fixed when the stop begins, so that slow steps do not add up: the whole stop
 * ends within the lease (RULE-020-031).
 */
export interface StopDeadlines {
  /** Then the handlers that still run are told to stop. */
  readonly handlers: number
  /** Then what is not settled is left to the reaper. */
  readonly settlements: number
  /** Then everything is closed, whether the database answers or not. */
  readonly end: number
}

/** Of the lease. Handlers do not get more, so that the rest fits into the lease as well. */
const MAX_HANDLERS_SHARE = 0.8

/** What the steps after the handlers take at most, however long the lease is. */
export const MAX_AFTER_HANDLERS_MS = 6_000

/** Of the time after the handlers. */
const SETTLEMENTS_SHARE = 1 / 3

export function stopDeadlines(
  beganAt: number,
  { leaseMs, shutdownTimeoutMs }: Pick<Timing, 'leaseMs' | 'shutdownTimeoutMs'>,
): StopDeadlines {
  const handlersMs = Math.min(shutdownTimeoutMs, leaseMs * MAX_HANDLERS_SHARE)
  const afterMs = Math.min(MAX_AFTER_HANDLERS_MS, leaseMs - handlersMs)
  const handlers = beganAt + handlersMs
  return { handlers, settlements: handlers + afterMs * SETTLEMENTS_SHARE, end: handlers + afterMs }
}
