/** A row that waits longer than this for a slot was claimed too early: another worker could have had it. */
const MAX_WAIT_MS = 1_000

/**
 * How many rows to claim ahead of the slots. It adapts to the handler: it doubles when the slots run dry before the next
 * claim is answered, and halves when rows wait long for a slot. So fast handlers are never idle, and slow ones do not
 * hold rows that other workers could take.
 */
export class Prefetch {
  #size: number

  constructor(size: number) {
    this.#size = size
  }

  within(most: number): number {
    return Math.min(this.#size, most)
  }

  ranDry(most: number): void {
    this.#size = Math.min(most, Math.max(1, this.#size * 2))
  }

  waited(ms: number): void {
    if (ms > MAX_WAIT_MS) this.#size = Math.floor(this.#size / 2)
  }
}
