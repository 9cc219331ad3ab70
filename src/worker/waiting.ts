/** Ways to wait: for a notification, for a free turn. Time limits are in `src/timeout.ts`. */

/**
 * Lets several loops wait for a notification, each with a time limit of its own. Those that come together are one: of a
 * batch of rows whose handlers end at the same moment, each notifies.
 */
export class Signal {
  readonly #waiting = new Set<() => void>()
  #isNotifying = false

  notify(): void {
    if (this.#isNotifying) return
    this.#isNotifying = true
    setImmediate(() => {
      this.#isNotifying = false
      for (const wake of this.#waiting) wake()
    })
  }

  /** Resolves with the next notification, or after this time. */
  async wait(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = Number.isFinite(ms) ? setTimeout(wake, Math.max(0, ms)) : undefined
      const waiting = this.#waiting
      function wake(): void {
        clearTimeout(timer)
        waiting.delete(wake)
        resolve()
      }
      waiting.add(wake)
    })
  }
}

/** Runs this many pieces of work at a time; the others wait for their turn, in order. */
export function atATime(count: number): <Result>(work: () => Promise<Result>) => Promise<Result> {
  let free = count
  const waiting: (() => void)[] = []
  return async (work) => {
    if (free === 0) await new Promise<void>((resolve) => waiting.push(resolve))
    else free -= 1
    try {
      return await work()
    } finally {
      const next = waiting.shift()
      if (next === undefined) free += 1
      else next()
    }
  }
}
