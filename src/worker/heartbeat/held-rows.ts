/** Which rows a worker holds, as both its own thread and the thread of the heartbeat see it. */
import type { RowsToRenew, RowToRenew } from './messages.ts'

/** The most rows one worker can hold at a time, whatever its settings become. */
export const MAX_HELD = 65_536

export interface HeldRow {
  readonly index: number
  /** Tells apart the rows that have had this index, one after the other. */
  readonly generation: number
}

/**
 * Which rows are held and until when each lease can be trusted, in memory that both threads share. So neither waits for
 * the other: a renewal counts even while a handler blocks the event loop, and a row that was settled is not renewed
 * although no message said so.
 *
 * `state` is the row's generation while it is held, its negative once it is lost, 0 when the index is free. Only the
 * worker takes and frees; either side may lose a row.
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
}

const SEPARATOR = '\0'

/** The rows as columns. They share the moment of their claim, or the earliest counts. */
export function columnsOf(rows: readonly RowToRenew[]): RowsToRenew {
  const indexes = new Int32Array(rows.length)
  const generations = new Int32Array(rows.length)
  const tokens = new BigInt64Array(rows.length)
  const buckets = new Int32Array(rows.length)
  let earliest = Number.POSITIVE_INFINITY
  rows.forEach(({ index, generation, token, bucket, claimedAt }, i) => {
    indexes[i] = index
    generations[i] = generation
    tokens[i] = token
    buckets[i] = bucket
    earliest = Math.min(earliest, claimedAt)
  })
  const ids = rows.map(({ id }) => id).join(SEPARATOR)
  return { indexes, generations, tokens, buckets, ids, claimedAt: earliest }
}

/** The rows in batches by the moment of their claim, which decides how long each may be renewed. */
export function byClaim(rows: readonly RowToRenew[]): RowsToRenew[] {
  const claims = new Map<number, RowToRenew[]>()
  for (const row of rows) claims.set(row.claimedAt, [...(claims.get(row.claimedAt) ?? []), row])
  return [...claims.values()].map(columnsOf)
}

/** Rows to renew, in batches as they were claimed. Most are settled before the first renewal. */
export class RowsInRenewal {
  readonly #held: HeldRows
  #batches: RowsToRenew[] = []

  constructor(held: HeldRows) {
    this.#held = held
  }

  /** Batches of which nothing is held any more are dropped as new ones arrive, so that they do not pile up. */
  add(batch: RowsToRenew): void {
    const firstHeld = this.#batches.findIndex((known) => this.#isHeld(known))
    this.#batches.splice(0, firstHeld === -1 ? this.#batches.length : firstHeld)
    this.#batches.push(batch)
  }

  /** The rows that are still held; the others are forgotten. */
  current(): RowToRenew[] {
    const batches = this.#batches.map((batch) => this.#stillHeld(batch)).filter((rows) => rows.length > 0)
    this.#batches = batches.map(columnsOf)
    return batches.flat()
  }

  #isHeld({ indexes, generations }: RowsToRenew): boolean {
    return indexes.some((index, i) => this.#held.isHeld({ index, generation: generations[i] ?? 0 }))
  }

  #stillHeld({ indexes, generations, tokens, buckets, ids, claimedAt }: RowsToRenew): RowToRenew[] {
    const named = ids.split(SEPARATOR)
    return Array.from(indexes, (index, i) => ({
      id: named[i] ?? '',
      index,
      generation: generations[i] ?? 0,
      token: tokens[i] ?? 0n,
      bucket: buckets[i] ?? 0,
      claimedAt,
    })).filter((row) => this.#held.isHeld(row))
  }
}
