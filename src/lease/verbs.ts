/** The verbs of a lease store: what they are asked, and what they answer. */
import type { Clock } from '../clock.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { OutcomeArgs } from './batch.ts'
import type { Lease } from './lease.ts'
import type { LeaseTable } from './table.ts'

/** The values of the order columns at which a claim ended; opaque to everyone but the next claim. */
export type Place = readonly string[]

export interface ClaimRequest {
  readonly limit: number
  readonly leaseMs: number
  readonly from?: Place | undefined
  /** Where the table has lanes: from which ones to claim, and how many from each. */
  readonly lanes?: readonly Lane[] | undefined
}

export interface Lane {
  /** The value of the column that `lanes` of the table names. */
  readonly key: string
  /** The most rows to claim from it. */
  readonly room: number
}

export interface Claimed<Row> {
  readonly lease: Lease
  readonly row: Row
}

export interface Claim<Row> {
  /** In the table's order. */
  readonly claimed: readonly Claimed<Row>[]
  /** Where to go on; absent when nothing was claimed or the table's order has no such place. */
  readonly place: Place | undefined
  /** There was as much as was asked for, or more, even if some of it has to wait for others of its ordering key. */
  readonly full: boolean
  /** When the next row will be due, or worth another look, where the table's statements say so. */
  readonly nextDueMs?: number
  /** Rows that had waited behind others can be claimed now: look again. */
  readonly advanced?: true
  /** On the local monotonic clock (D8). */
  readonly trustedUntil: number
}

export interface Renewal {
  readonly renewed: readonly Lease[]
  /** Locked or changed by another transaction at this moment: not extended; the next renewal tells more. */
  readonly busy: readonly Lease[]
  /** Expired, settled, or held by another claim. */
  readonly lost: readonly Lease[]
  readonly trustedUntil: number
}

/** What became of the leases handed to `settle` or `release`. */
export interface Ended {
  readonly ended: readonly Lease[]
  /** Their rows are unchanged: the token is no longer current. */
  readonly fencedOff: readonly Lease[]
  /** Rows that others of their ordering key had waited for were settled: look again. */
  readonly advanced?: true
  /** The keys to look at again once the caller's transaction has ended; hand them to `lookAgain` then. */
  readonly left?: readonly string[]
}

export interface Reaped {
  readonly id: string
  /** Who held the row. */
  readonly owner: string
  readonly token: bigint
  /** How long the lease had been over. */
  readonly staleMs: number
}

export interface SettleOptions {
  /** The arguments of the outcome, one record for each lease: scalars, dates, bytes or JSON. */
  readonly args?: readonly OutcomeArgs[]
  /** The caller's own transaction: the row is settled exactly if it commits. */
  readonly tx?: Queryable
}

/** The five verbs over one table, for one owner (and one bucket). Nothing else changes a lease. */
export interface LeaseStore<Row extends object = Record<string, unknown>, Outcome extends string = string> {
  readonly table: LeaseTable<Outcome>
  readonly owner: string
  claim(request: ClaimRequest): Promise<Claim<Row>>
  renew(leases: readonly Lease[], leaseMs: number): Promise<Renewal>
  settle(outcome: Outcome, leases: readonly Lease[], options?: SettleOptions): Promise<Ended>
  /** Settles one batch and claims the next, in one round trip. */
  exchange(
    settlement: { outcome: Outcome; leases: readonly Lease[]; args?: SettleOptions['args'] },
    request: ClaimRequest,
  ): Promise<Ended & Claim<Row>>
  /** Gives rows back untouched, for another claim, at once or after a delay. */
  release(leases: readonly Lease[], delayMs?: number): Promise<Ended>
  /** Takes back what has expired, or all that a dead owner held. */
  reap(request?: { limit?: number; ownedBy?: string }): Promise<readonly Reaped[]>
  /**
   * Lets those go on who stand first in the line of their ordering key and were left waiting: after a row was deleted
   * by hand, or in the caller's transaction after it let a key go on. Without keys it goes from one key to the next,
   * a bounded number at a time; hand it the `last` of its answer to go on.
   */
  advance(request?: AdvanceRequest): Promise<Advanced>
  /** The next claim or exchange begins with the lines of these keys. */
  lookAgain(keys: readonly string[]): void
}

export interface AdvanceRequest {
  readonly keys?: readonly string[]
  readonly after?: string | undefined
  readonly tx?: Queryable
}

export interface Advanced {
  readonly advanced: number
  /** The last key that was looked at; absent when there are no more. */
  readonly last: string | undefined
}

export interface StoreOptions {
  readonly owner: string
  readonly bucket?: number
  readonly clock?: Clock
}
