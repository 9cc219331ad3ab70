/** The library's clock, which a test can replace. Lease decisions use the database's clock instead (D8). */
export interface Clock {
  /** Milliseconds that never go back. They are unrelated to the calendar and the same in every thread of the process. */
  monotonicNow(): number
}

/**
 * `performance.now()` counts from the start of its own thread, but a deadline must mean the same in all threads.
 * `process.hrtime()` does, and uses the same clock, but allocates an array for every call. Therefore it is read once to
 * find the offset between the two.
 */
const startOfThread = (([seconds, nanoseconds]) => seconds * 1_000 + nanoseconds / 1e6 - performance.now())(
  process.hrtime(),
)

export const systemClock: Clock = {
  monotonicNow: () => startOfThread + performance.now(),
}
