/** Time as the library sees it, so that a test can hold it still. Lease decisions use the database's clock (D8). */
export interface Clock {
  /** Milliseconds that only ever grow, unrelated to the calendar. */
  monotonicNow(): number
}

export const systemClock: Clock = { monotonicNow: () => performance.now() }
