/** The most rows one worker can hold at a time, whatever its settings become. */
export const MAX_HELD = 65_536

export interface HeldRow {
  readonly index: number
  /** Tells apart the rows that have had this index, one after the other. */
  readonly generation: number
}

/**
 * Which rows a worker holds and until when each lease can be trusted, in memory that the worker's thread and the
 * thread that renews both see. So neither waits for the other: a renewal counts even while a handler blocks the event
 * loop, and a row that was settled is not renewed again although no message told so.
 *
 * `state` is the row's generation while it is held, its negative once it is lost, 0 when the index is free. Only the
 * worker takes and frees; only the renewing side loses.
 */
export class HeldRows {
  readonly buffer: SharedArrayBuffer
  readonly #state: Int32Array
  readonly #trustedUntil: Float64Array
  readonly #finished: Uint8Array
  readonly #free: number[] = []
  #generation = 0
  #used = 0

  constructor(
    buffer = new SharedArrayBuffer(
      MAX_HELD * (Float64Array.BYTES_PER_ELEMENT + Int32Array.BYTES_PER_ELEMENT + 1),
    ),
  ) {
    this.buffer = buffer
    this.#trustedUntil = new Float64Array(buffer, 0, MAX_HELD)
    this.#state = new Int32Array(buffer, MAX_HELD * Float64Array.BYTES_PER_ELEMENT, MAX_HELD)
    const used = MAX_HELD * (Float64Array.BYTES_PER_ELEMENT + Int32Array.BYTES_PER_ELEMENT)
    this.#finished = new Uint8Array(buffer, used, MAX_HELD)
  }

  take(trustedUntil: number): HeldRow {
    const index = this.#free.pop() ?? this.#used++
    if (index >= MAX_HELD) throw new RangeError(`a worker holds at most ${MAX_HELD} rows`)
    this.#generation = (this.#generation % 0x7f_ff_ff_ff) + 1
    this.#trustedUntil[index] = trustedUntil
    this.#finished[index] = 0
    Atomics.store(this.#state, index, this.#generation)
    return { index, generation: this.#generation }
  }

  /** Held or lost. False: it was freed before, and another row may have its index by now. */
  free({ index, generation }: HeldRow): boolean {
    if (Math.abs(Atomics.load(this.#state, index)) !== generation) return false
    Atomics.store(this.#state, index, 0)
    this.#free.push(index)
    return true
  }

  /** Its handler has returned: the row only waits to be settled. */
  finish({ index }: HeldRow): void {
    this.#finished[index] = 1
  }

  isFinished({ index }: HeldRow): boolean {
    return this.#finished[index] === 1
  }

  isHeld({ index, generation }: HeldRow): boolean {
    return Atomics.load(this.#state, index) === generation
  }

  trustedUntil({ index }: HeldRow): number {
    return this.#trustedUntil[index] ?? 0
  }

  /** Held, not lost, and within the time for which the lease can be trusted (D8). */
  isTrusted(row: HeldRow, now: number): boolean {
    return this.isHeld(row) && now < this.trustedUntil(row)
  }

  /** A renewal was confirmed. Written late, to an index that another row has by then, it can only shorten its trust. */
  renewed(row: HeldRow, trustedUntil: number): void {
    if (this.isHeld(row)) this.#trustedUntil[row.index] = trustedUntil
  }

  /** True when it was held until now. */
  lose({ index, generation }: HeldRow): boolean {
    return Atomics.compareExchange(this.#state, index, generation, -generation) === generation
  }
}
