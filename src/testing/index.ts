/**
 * `leasehold/testing`: what the tests of a project that uses Leasehold need. It works with any test runner.
 *
 * - `testDatabase` creates a database for a test file, on an embedded PostgreSQL that all test processes share.
 * - `drain` processes everything that is due, and resolves when nothing is.
 * - `expireLeases`, `makeDue` and `advance` move the times in rows, so that no test waits for a lease or a retry.
 * - `holdLease` takes a row as another worker, to test that a write is fenced off.
 * - `leaseConformance` tests that your own lease table keeps the promises of the kernel.
 */
export {
  testDatabase,
  type PreparedDatabase,
  type TestDatabase,
  type TestDatabaseOptions,
} from './database.ts'
export { drain, type Drained, type DrainFailure, type DrainOptions } from './drain.ts'
export {
  advance,
  expireLeases,
  holdLease,
  makeDue,
  type HoldLeaseOptions,
  type OtherLease,
  type RowChoice,
} from './time.ts'
export { outboxEvents } from './outbox-events.ts'
export { leaseConformance, type ConformanceCase } from './conformance.ts'
export type { LeaseSubject } from './fixture.ts'
