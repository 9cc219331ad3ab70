import { type LeaseTable, tableName } from './table.ts'

/** A time-bounded right to process one row. */
export interface Lease {
  /** The row: the text of its id, or a JSON array of texts where several columns identify it. */
  readonly id: string
  readonly owner: string
  /** Where the table has buckets: the one that the row is in. */
  readonly bucket?: number | undefined
  /** The fencing token: grows with every claim of the row. Hand it on to whatever the handler writes to. */
  readonly token: bigint
  /** By the database's clock, as of the claim; a renewal does not change this object. */
  readonly until: Date
}

/** The id of the row with these values in its id columns, as leases name it. */
export function rowId(...values: readonly [string, ...string[]]): string {
  return values.length === 1 ? values[0] : JSON.stringify(values)
}

/** The values of the id columns of a row, as texts. */
export function idValues(table: LeaseTable, id: string): readonly string[] {
  const columns = table.id.length
  if (columns === 1) return [id]
  const values: unknown = JSON.parse(id)
  const fits = Array.isArray(values) && values.length === columns
  if (fits && values.every((value) => typeof value === 'string')) return values
  throw new TypeError(`${id} is not a row id of ${tableName(table)}: its id has ${columns} columns`)
}

const MARGIN_SHARE = 0.05
const LONGEST_MARGIN_MS = 1_000

/**
 * Until when, on the local monotonic clock, a lease that was asked for at `sentAt` can be trusted (D8).
 * The database counted the lease from a later moment than `sentAt`, so only a difference in the speed of the two
 * clocks and our own reaction time are left for the margin.
 */
export function trustedUntil(sentAt: number, leaseMs: number): number {
  return sentAt + leaseMs - trustMargin(leaseMs)
}

/** How long before its end a lease is no longer trusted. */
export function trustMargin(leaseMs: number): number {
  return Math.min(leaseMs * MARGIN_SHARE, LONGEST_MARGIN_MS)
}
