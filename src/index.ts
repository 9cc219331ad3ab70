/**
 * Time-bounded, fenced leases on the rows of any PostgreSQL table.
 *
 * Declare a table with `leaseTable` and have it worked off by `startRuntime`; or open a store on it with
 * `openLeaseStore`, and claim, renew, settle, release and reap its rows yourself. `openDatabase` is the pool these run
 * on; `migrate` brings Leasehold's own schema up to date.
 */
export { ERROR_CODES, isLeaseholdError, LeaseholdError, type ErrorCode } from './errors.ts'
export * from './lease/index.ts'
export * from './worker/index.ts'
export {
  createMetrics,
  databaseGauge,
  gauge,
  loadOpenTelemetry,
  logEvents,
  observeWithOpenTelemetry,
  pendingAge,
} from './observe/index.ts'
export {
  migrate,
  openDatabase,
  type Database,
  type DatabaseEvent,
  type DatabaseOptions,
  type Migrated,
  type MigrateOptions,
  type Queryable,
  type Result,
  type Statement,
  type TransactionOptions,
} from './postgres/index.ts'
