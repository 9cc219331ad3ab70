/** The verbs of a lease store: what they are asked, and what they answer. */
import type { Clock } from '../clock.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { OutcomeArgs } from './batch.ts'
import type { DataErrorReport } from './data-errors.ts'
import type { Lease } from './lease.ts'
import type { Way } from './statements.ts'
import type { LeaseTable } from './table.ts'

/** Where a scan ended; opaque to everyone but the next claim of the same way. */
export type Cursor = readonly string[]

export interface ClaimRequest {
  readonly limit: number
  readonly leaseMs: number
  /** How to find rows, in a table with an ordering key. Default: by key, then in order. */
  readonly way?: Way | undefined
  /** Where to start. Default: at the beginning. */
  readonly cursor?: Cursor | undefined
  /** Where the table has groups: from which ones to claim, and how many rows from each. */
  readonly groups?: readonly Group[] | undefined
  /** The most bytes to claim, where the table says how large a row is; at least one row is claimed. */
  readonly bytes?: number | undefined
  /** How many suspects the claim may take: rows under which two processes died (D10). Default 1. */
  readonly suspects?: 0 | 1 | undefined
  /** Together with a settlement by key: claim only the next rows of the settled keys, and look for no others. */
  readonly continueOnly?: boolean | undefined
  /** Claim these rows and no others. */
  readonly ids?: readonly string[] | undefined
}

export interface Group {
  /** The value of the column that `groups` of the table names. */
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
  /** Where the next claim of this way continues; absent when the scan reached the end, or the table has no cursor. */
  readonly cursor: Cursor | undefined
  /** There may be more to claim at this moment. */
  readonly more: boolean
  /** When the next row will be due, where the table has `availableAt`. */
  readonly dueInMs?: number
  /** The id of the suspect among the claimed rows. */
  readonly suspect?: string
  /** The size of the claimed rows together, where the table says how large a row is. */
  readonly bytes?: number
  /** For how long the rows were leased. */
  readonly leaseMs: number
  /** On the local monotonic clock (D8). */
  readonly trustedUntil: number
}

export interface Renewal {
  readonly renewed: readonly Lease[]
  /** Locked by another session, or stopped by a data error: not extended; the next renewal tells more. */
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
  /** Still ours, but locked by another session: try again. */
  readonly busy: readonly Lease[]
  /** Still ours, but a data error stops this outcome: trying again would bring the same. */
  readonly refused: readonly { readonly lease: Lease; readonly error: unknown }[]
}

export interface Reaped {
  readonly id: string
  /** Who held the row. */
  readonly owner: string
  readonly token: bigint
  /** How long the lease had been over. */
  readonly staleMs: number
  /** Its attempts are used up. */
  readonly exhausted: boolean
}

export interface SettleOptions {
  /** The arguments of the outcome, one record for each lease: scalars, dates, bytes or JSON. */
  readonly args?: readonly OutcomeArgs[]
  /** The caller's own transaction: the row is settled exactly if it commits. */
  readonly tx?: Queryable
}

/** A batch of finished rows that is settled together with the next claim. */
export interface Settlement {
  readonly leases: readonly Lease[]
  readonly args?: readonly OutcomeArgs[] | undefined
}

/** The five verbs over one table, for one owner (and one bucket). Nothing else changes a lease. */
export interface LeaseStore<Row extends object = Record<string, unknown>, Outcome extends string = string> {
  readonly table: LeaseTable<Outcome>
  readonly owner: string
  /** How claims of this table find rows. */
  readonly ways: readonly Way[]
  claim(request: ClaimRequest): Promise<Claim<Row>>
  renew(leases: readonly Lease[], leaseMs: number): Promise<Renewal>
  settle(outcome: Outcome, leases: readonly Lease[], options?: SettleOptions): Promise<Ended>
  /** Whether rows settled as `done` and the next claim can share a statement. */
  readonly canSettleAndClaim: boolean
  /** Settles a batch as `done` and claims the next one, in one round trip. */
  settleAndClaim(settlement: Settlement, request: ClaimRequest): Promise<Ended & Claim<Row>>
  /** Gives rows back untouched, for another claim, at once or after a delay. */
  release(leases: readonly Lease[], delayMs?: number): Promise<Ended>
  /** Takes back what has expired, or all that a dead owner held. */
  reap(request?: { limit?: number; ownedBy?: string }): Promise<readonly Reaped[]>
}

export interface StoreOptions {
  readonly owner: string
  readonly bucket?: number
  readonly clock?: Clock
  /** Told of each row that stops a claim, a renewal or a reap with a data error; `settle` and `release` return theirs. */
  readonly onDataError?: (report: DataErrorReport) => void
}
