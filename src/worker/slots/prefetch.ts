/** A row that waits longer than this for a slot was claimed too early: another worker could have had it. */
const LONGEST_WAIT_MS = 1_000

/**
 * How many rows to hold beyond the slots. It follows the pace of the handler: it doubles while the slots run dry
 * before the next claim is back, and halves when rows wait for a slot. So quick handlers are never idle, and slow ones
 * do not sit on rows that others could take.
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
    if (ms > LONGEST_WAIT_MS) this.#size = Math.floor(this.#size / 2)
  }
}
