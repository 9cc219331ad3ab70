/**
 * Leases on the rows of any table. `README.md` beside this file has the protocol: who is authoritative, what a lease
 * is worth, and what happens on each failure.
 */
export { createClaimer, type Claimer, type Looked } from './claimer.ts'
export { keyOf, rowId, trustedUntil, type Lease } from './lease.ts'
export {
  openLeaseStore,
  type Claim,
  type ClaimRequest,
  type Claimed,
  type Ended,
  type LeaseStore,
  type Place,
  type Reaped,
  type Renewal,
  type SettleOptions,
  type StoreOptions,
} from './store.ts'
export { leaseTable } from './declaration.ts'
export { tableName, type LeaseTable, type LeaseTableDeclaration, type OutcomeDeclaration } from './table.ts'
export { LEASE_MS, REAPER_INTERVAL_MS, timing, type Timing } from './timing.ts'
export { MAX_BATCH } from './sql.ts'
