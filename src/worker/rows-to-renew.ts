import type { HeldRows } from './held-rows.ts'
import type { RowsToRenew, RowToRenew } from './lifeline-messages.ts'

const BETWEEN = '\0'

/** The columns of these rows. They share the moment of their claim, or the earliest counts. */
export function columnsOf(rows: readonly RowToRenew[]): RowsToRenew {
  const indexes = new Int32Array(rows.length)
  const generations = new Int32Array(rows.length)
  const tokens = new BigInt64Array(rows.length)
  let earliest = Number.POSITIVE_INFINITY
  rows.forEach(({ index, generation, token, claimedAt }, i) => {
    indexes[i] = index
    generations[i] = generation
    tokens[i] = token
    earliest = Math.min(earliest, claimedAt)
  })
  return { indexes, generations, tokens, ids: rows.map(({ id }) => id).join(BETWEEN), claimedAt: earliest }
}

/** The rows by the moment of their claim, which decides how long each may be renewed. */
export function byClaim(rows: readonly RowToRenew[]): RowsToRenew[] {
  const claims = new Map<number, RowToRenew[]>()
  for (const row of rows) claims.set(row.claimedAt, [...(claims.get(row.claimedAt) ?? []), row])
  return [...claims.values()].map(columnsOf)
}

/** Rows to renew, batch by batch as they were claimed. Most are settled before anybody looks at them. */
export class RowsInRenewal {
  readonly #held: HeldRows
  #batches: RowsToRenew[] = []

  constructor(held: HeldRows) {
    this.#held = held
  }

  /** Batches of which nothing is held any more are dropped as new ones come, so that they do not pile up. */
  add(batch: RowsToRenew): void {
    const firstHeld = this.#batches.findIndex((known) => this.#isHeld(known))
    this.#batches.splice(0, firstHeld === -1 ? this.#batches.length : firstHeld)
    this.#batches.push(batch)
  }

  /** Those that are still held; only they are kept. */
  current(): RowToRenew[] {
    const batches = this.#batches.map((batch) => this.#stillHeld(batch)).filter((rows) => rows.length > 0)
    this.#batches = batches.map(columnsOf)
    return batches.flat()
  }

  #isHeld({ indexes, generations }: RowsToRenew): boolean {
    return indexes.some((index, i) => this.#held.isHeld({ index, generation: generations[i] ?? 0 }))
  }

  #stillHeld({ indexes, generations, tokens, ids, claimedAt }: RowsToRenew): RowToRenew[] {
    const named = ids.split(BETWEEN)
    return Array.from(indexes, (index, i) => ({
      id: named[i] ?? '',
      index,
      generation: generations[i] ?? 0,
      token: tokens[i] ?? 0n,
      claimedAt,
    })).filter((row) => this.#held.isHeld(row))
  }
}
