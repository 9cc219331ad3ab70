/** Time as the library sees it, so that a test can hold it still. Lease decisions use the database's clock (D8). */
export interface Clock {
  /** Milliseconds that only ever grow, unrelated to the calendar, and the same in every thread of the process. */
  monotonicNow(): number
}

/**
 * `performance.now()` counts from the start of its own thread, and a deadline must mean the same in all of them:
 * `process.hrtime()` does, on the same clock, but makes an array for every call, and every row asks a few times.
 */
const startOfThread = (([seconds, nanoseconds]) => seconds * 1_000 + nanoseconds / 1e6 - performance.now())(
  process.hrtime(),
)

export const systemClock: Clock = {
  monotonicNow: () => startOfThread + performance.now(),
}
