import { type HeldRows } from './held-rows.ts'
import { type RowsToRenew, type RowToRenew } from './lifeline-messages.ts'

/** The columns of these rows. They share the moment of their claim, or the earliest counts. */
export function columnsOf(rows: readonly RowToRenew[]): RowsToRenew {
  return {
    indexes: Int32Array.from(rows, ({ index }) => index),
    generations: Int32Array.from(rows, ({ generation }) => generation),
    tokens: BigInt64Array.from(rows, ({ token }) => token),
    ids: rows.map(({ id }) => id),
    claimedAt: Math.min(...rows.map(({ claimedAt }) => claimedAt)),
  }
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
    return ids
      .map((id, i) => ({
        id,
        index: indexes[i] ?? 0,
        generation: generations[i] ?? 0,
        token: tokens[i] ?? 0n,
        claimedAt,
      }))
      .filter((row) => this.#held.isHeld(row))
  }
}
