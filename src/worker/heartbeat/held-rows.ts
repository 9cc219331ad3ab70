/** Which rows a worker holds, as both its own thread and the thread of the heartbeat see it. */

/** The most rows one worker can hold at a time, whatever its settings become. */
export const MAX_HELD = 65_536

/** An address of more characters, or of others than ASCII, does not fit into the shared memory. */
const ADDRESS_BYTES = 128

export interface HeldRow {
  readonly index: number
  /** Tells apart the rows that have had this index, one after the other. */
  readonly generation: number
}

/** What the heartbeat needs to know of a row to renew its lease. */
export interface RowToRenew extends HeldRow {
  /** As the lease store writes it: which row it is. */
  readonly address: string
  readonly token: bigint
  /** On the monotonic clock, which is the same in every thread. */
  readonly claimedAt: number
}

/** A row as it is claimed. */
export interface ClaimedRow extends Omit<RowToRenew, keyof HeldRow> {
  /** Until when its lease can be trusted (D8). */
  readonly trustedUntil: number
}

/**
 * Which rows are held and until when each lease can be trusted, in memory that both threads share. So neither waits for
 * the other: a renewal counts even while a handler blocks the event loop, a row that was settled is not renewed although
 * no message said so, and rows that are settled before their first renewal cost the thread nothing.
 *
 * `state` is the row's generation while it is held, its negative once it is lost, 0 when the index is free. Only the
 * worker takes and frees; either side may lose a row. The other fields of a row are written before its state.
 */
export class HeldRows {
  readonly buffer: SharedArrayBuffer
  readonly #trustedUntil: Float64Array
  readonly #claimedAt: Float64Array
  readonly #tokens: BigInt64Array
  readonly #state: Int32Array
  /** How many indexes have ever been used. */
  readonly #used: Int32Array
  readonly #finished: Uint8Array
  /** The length of each address; 0: it is not in this memory. */
  readonly #lengths: Uint8Array
  readonly #addresses: Uint8Array
  readonly #free: number[] = []
  #generation = 0

  constructor(buffer = new SharedArrayBuffer(MAX_HELD * (8 + 8 + 8 + 4 + 1 + 1 + ADDRESS_BYTES) + 8)) {
    this.buffer = buffer
    let at = 0
    const next = (bytes: number): number => (at += bytes) - bytes
    this.#trustedUntil = new Float64Array(buffer, next(8 * MAX_HELD), MAX_HELD)
    this.#claimedAt = new Float64Array(buffer, next(8 * MAX_HELD), MAX_HELD)
    this.#tokens = new BigInt64Array(buffer, next(8 * MAX_HELD), MAX_HELD)
    this.#used = new Int32Array(buffer, next(8), 1)
    this.#state = new Int32Array(buffer, next(4 * MAX_HELD), MAX_HELD)
    this.#finished = new Uint8Array(buffer, next(MAX_HELD), MAX_HELD)
    this.#lengths = new Uint8Array(buffer, next(MAX_HELD), MAX_HELD)
    this.#addresses = new Uint8Array(buffer, next(ADDRESS_BYTES * MAX_HELD))
  }

  take({ trustedUntil, claimedAt, token, address }: ClaimedRow): HeldRow {
    const used = this.#used[0] ?? 0
    const index = this.#free.pop() ?? used
    if (index >= MAX_HELD) throw new RangeError(`a worker holds at most ${MAX_HELD} rows`)
    this.#generation = (this.#generation % 0x7f_ff_ff_ff) + 1
    this.#trustedUntil[index] = trustedUntil
    this.#claimedAt[index] = claimedAt
    this.#tokens[index] = token
    this.#finished[index] = 0
    this.#lengths[index] = this.#write(index, address)
    Atomics.store(this.#state, index, this.#generation)
    if (index === used) Atomics.store(this.#used, 0, used + 1)
    return { index, generation: this.#generation }
  }

  /** The thread of the heartbeat does not find the address of this row here, and has to be told. */
  isTooLong({ index }: HeldRow): boolean {
    return this.#lengths[index] === 0
  }

  /** The rows that are held and were claimed before this moment. `others`: the addresses that are not in this memory. */
  claimedBefore(moment: number, others: (row: HeldRow) => string | undefined): RowToRenew[] {
    const rows: RowToRenew[] = []
    const used = Atomics.load(this.#used, 0)
    for (let index = 0; index < used; index += 1) {
      const generation = Atomics.load(this.#state, index)
      const claimedAt = this.#claimedAt[index] ?? 0
      if (generation <= 0 || claimedAt >= moment) continue
      const row = { index, generation }
      const address = this.#lengths[index] === 0 ? others(row) : this.#read(index)
      const token = this.#tokens[index] ?? 0n
      // Another row may have got the index meanwhile.
      if (address !== undefined && this.isHeld(row)) rows.push({ ...row, address, token, claimedAt })
    }
    return rows
  }

  /** Frees a row that is held or lost. False: it was freed before, and another row may have its index by now. */
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

  /** A renewal was confirmed. If the index has passed to another row meanwhile, its trust can only be shortened. */
  renewed(row: HeldRow, trustedUntil: number): void {
    if (this.isHeld(row)) this.#trustedUntil[row.index] = trustedUntil
  }

  /** True when it was held until now. */
  lose({ index, generation }: HeldRow): boolean {
    return Atomics.compareExchange(this.#state, index, generation, -generation) === generation
  }

  /** Returns the length; 0: it does not fit. */
  #write(index: number, address: string): number {
    if (address.length > ADDRESS_BYTES) return 0
    const at = index * ADDRESS_BYTES
    for (let i = 0; i < address.length; i += 1) {
      const code = address.charCodeAt(i)
      if (code > 0x7f) return 0
      this.#addresses[at + i] = code
    }
    return address.length
  }

  #read(index: number): string {
    const at = index * ADDRESS_BYTES
    return String.fromCharCode(...this.#addresses.subarray(at, at + (this.#lengths[index] ?? 0)))
  }
}
