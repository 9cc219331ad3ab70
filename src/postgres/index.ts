/**
 * Access to PostgreSQL. This folder makes the following promises to the rest of the code:
 *
 * - **Every call settles, and no fault ends the process.** Whatever the database does (refuse, reset, restart, stop
 *   answering), every call settles within its timeout. A database that cannot be reached is `DATABASE_UNAVAILABLE`, a
 *   statement that took too long is `QUERY_TIMEOUT`, one that its role may not run is `PERMISSION_DENIED`, and any other
 *   SQL error is `pg`'s own `DatabaseError`, unchanged.
 * - **A connection in an unknown state is destroyed, never reused**: after a timeout, a lost socket or an unfinished
 *   transaction.
 * - **A transaction resolves only when its COMMIT was confirmed.** An unknown outcome rejects with an error that says so.
 * - **A pipeline is one round trip and one transaction.** After an error nothing of it was written, the error tells which
 *   statement failed, and its connection is used again when the server is ready for it.
 * - **Connections follow the server that takes writes**, among the hosts of the URL, also when another one takes over.
 * - **Connections are few and counted** (RULE-020-041): at most `maxConnections`, plus one for each `Listener`.
 * - **A transaction-mode pooler is enough.** If the pooler has no prepared statements, statement names are no longer
 *   sent. Only the `Listener` needs a session of its own, and it is only an accelerator.
 * - **Migrations go forward, one transaction each**, however many processes start them.
 *
 * Nothing here knows about leases or logging. Events are reported through `onEvent`.
 */
export {
  openDatabase,
  type Database,
  type DatabaseEvent,
  type DatabaseOptions,
  type TransactionOptions,
} from './database.ts'
export { isUnavailable } from './failures.ts'
export { quoteIdentifier, quoteLiteral, quoteQualified } from './identifiers.ts'
export { Listener, type ListenerEvent, type ListenerOptions } from './listener.ts'
export {
  migrate,
  type MigrateOptions,
  type Migrated,
  type MigrationEvent,
  migrationsSql,
  type PrintOptions,
} from './migrate.ts'
export { isPermissionDenied, type NeededRole } from './permissions.ts'
export { failedStatement } from './pipeline.ts'
export { applyRoles, missingRoles, type RoleOptions, rolesSql } from './roles.ts'
export { describeSchema, SCHEMA_FILE_HEADER } from './schema.ts'
export type { Queryable, Result, ResultsOf, Statement } from './queryable.ts'
