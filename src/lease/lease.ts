import type { LeaseTable } from './table.ts'

/** A time-bounded right to process one row. */
export interface Lease {
  /** The row: the text of its id, or a JSON array of texts where several columns make the key. */
  readonly id: string
  readonly owner: string
  /** The fencing token: grows with every claim of the row. Hand it on to whatever the handler writes to. */
  readonly token: bigint
  /** By the database's clock, as of the claim; a renewal does not change this object. */
  readonly until: Date
}

/** The id of a row with this key, as leases name it. */
export function rowId(...key: readonly [string, ...string[]]): string {
  return key.length === 1 ? key[0] : JSON.stringify(key)
}

/** The key of the row: one text for each key column. */
export function keyOf(table: LeaseTable, id: string): readonly string[] {
  if (table.key.length === 1) return [id]
  const key: unknown = JSON.parse(id)
  if (
    Array.isArray(key) &&
    key.length === table.key.length &&
    key.every((part) => typeof part === 'string')
  ) {
    return key
  }
  throw new TypeError(
    `${id} is not a row id of ${table.schema}.${table.name}: its key has ${table.key.length} columns`,
  )
}

const MARGIN_SHARE = 0.05
const LONGEST_MARGIN_MS = 1_000

/**
 * Until when, on the local monotonic clock, a lease that was asked for at `sentAt` can be trusted (D8).
 * The database counted the lease from a later moment than `sentAt`, so only a difference in the speed of the two
 * clocks and our own reaction time are left for the margin.
 */
export function trustedUntil(sentAt: number, leaseMs: number): number {
  return sentAt + leaseMs - Math.min(leaseMs * MARGIN_SHARE, LONGEST_MARGIN_MS)
}
