/** Lets several loops wait for news, and for no longer than they want to. */
export class Signal {
  readonly #waiting = new Set<() => void>()

  notify(): void {
    for (const wake of this.#waiting) wake()
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
