/**
 * Leases on the rows of any table. `README.md` in this folder has the protocol: who is authoritative, what a lease
 * is worth, and what happens on each failure.
 */
export type { DataErrorReport } from './data-errors.ts'
export { idValues, rowId, trustedUntil, type Lease } from './lease.ts'
export {
  openLeaseStore,
  type Claim,
  type ClaimRequest,
  type Claimed,
  type Ended,
  type Group,
  type LeaseStore,
  type Reaped,
  type Renewal,
  type SettleOptions,
  type StoreOptions,
} from './store.ts'
export {
  leaseTable,
  type AttemptsDeclaration,
  type LeaseColumns,
  type LeaseTableDeclaration,
  type OutcomeDeclaration,
} from './declaration.ts'
export { tableName, type LeaseTable } from './table.ts'
export { DEFAULT_RETRY, retryDelay, retryPolicy, type RetryPolicy } from './retry-policy.ts'
export { LEASE_MS, REAPER_INTERVAL_MS, timing, type Timing } from './timing.ts'
export { MAX_BATCH } from './table-sql.ts'
