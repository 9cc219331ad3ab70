/**
 * Time-bounded, fenced leases on the rows of any PostgreSQL table.
 *
 * Declare a table with `leaseTable`, and either have `startRuntime` process its rows, or open a store on it with
 * `openLeaseStore` and claim, renew, settle, release and reap its rows yourself. `openDatabase` opens the connection
 * pool that these use; `migrate` creates or updates Leasehold's own schema.
 *
 * The four applications have entry points of their own: `leasehold/outbox`, `leasehold/webhooks`, `leasehold/sync` and
 * `leasehold/reconcile`.
 */

// Lease tables
export { leaseTable, type LeaseTableDeclaration } from './lease/declaration.ts'
export type { LeaseTable } from './lease/table.ts'
export { openLeaseStore, type LeaseStore } from './lease/store.ts'
export type { Lease } from './lease/lease.ts'
export type { RetryPolicy } from './lease/retry-policy.ts'

// Workers
export {
  changeSettings,
  dead,
  done,
  Events,
  fixedGroups,
  keepHeapSmall,
  listWorkers,
  PermanentError,
  readSettings,
  retry,
  SaturatedError,
  settleAs,
  startRuntime,
  type EventMap,
  type HandlerContext,
  type Outcome,
  type Runtime,
  type RuntimeOptions,
  type WorkDeclaration,
  type WorkerSettings,
} from './worker/index.ts'

// Logs, metrics and health
export { logEvents } from './observe/log.ts'
export { createMetrics } from './observe/prometheus.ts'
export { workerGauges } from './observe/worker-gauges.ts'
export { workerHealth } from './observe/health.ts'
export { observeWithOpenTelemetry } from './observe/opentelemetry.ts'

// PostgreSQL
export { migrate, openDatabase, type Database, type Queryable } from './postgres/index.ts'

// Errors
export { isLeaseholdError, LeaseholdError, type ErrorCode } from './errors.ts'
