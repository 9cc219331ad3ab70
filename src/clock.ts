/** Time as the library sees it, so that a test can hold it still. Lease decisions use the database's clock (D8). */
export interface Clock {
  /** Milliseconds that only ever grow, unrelated to the calendar, and the same in every thread of the process. */
  monotonicNow(): number
}

export const systemClock: Clock = {
  monotonicNow: () => {
    // performance.now() counts from the start of its own thread; a deadline must mean the same in all of them.
    const [seconds, nanoseconds] = process.hrtime()
    return seconds * 1_000 + nanoseconds / 1e6
  },
}
