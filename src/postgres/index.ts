/**
 * The way to PostgreSQL. What this folder promises to those above it:
 *
 * - **No promise hangs and no fault ends the process.** Whatever the database does (refuses, resets, restarts,
 *   falls silent), every call settles within its timeout. What cannot be reached is `DATABASE_UNAVAILABLE`, what
 *   took too long is `QUERY_TIMEOUT`, an SQL error is `pg`'s own `DatabaseError`, unchanged.
 * - **A connection in doubt is destroyed, never reused**: after a timeout, a lost socket, an unfinished transaction.
 * - **A transaction resolves only when its COMMIT was confirmed.** An unknown outcome rejects, and says so.
 * - **Connections are few and counted** (RULE-020-041): at most `maxConnections`, plus one for each `Listener`.
 * - **A transaction-mode pooler will do.** Without prepared statements behind the URL, names are dropped by
 *   themselves. Only the `Listener` needs a session, and it only makes things faster.
 * - **Migrations go forward, one transaction each**, whoever and however many start them.
 *
 * Nothing here knows of leases or of logging: what happens is told through `onEvent`.
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
export { migrate, type MigrateOptions, type Migrated, type MigrationEvent } from './migrate.ts'
export { describeSchema, SCHEMA_FILE_HEADER } from './schema.ts'
export type { Queryable, Result, Statement } from './queryable.ts'
