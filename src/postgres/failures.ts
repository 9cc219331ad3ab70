import type { DatabaseError } from 'pg'
import { LeaseholdError, isLeaseholdError } from '../errors.ts'

/** SQLSTATEs by which a server says "not now": it is going down, coming up, or full. */
const UNAVAILABLE_STATES: ReadonlySet<string> = new Set([
  '08000', // connection_exception
  '08001', // sqlclient_unable_to_establish_sqlconnection
  '08003', // connection_does_not_exist
  '08004', // sqlserver_rejected_establishment_of_sqlconnection
  '08006', // connection_failure
  '53300', // too_many_connections
  '57P01', // admin_shutdown, also pg_terminate_backend
  '57P02', // crash_shutdown
  '57P03', // cannot_connect_now: starting up, shutting down, in recovery
  '57P05', // idle_session_timeout
])

/** What the operating system says when there is no way to the server. A name that does not resolve counts:
 *  in containers it comes back with the server. */
const UNAVAILABLE_SYSTEM_CODES: ReadonlySet<string> = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'ECONNABORTED',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'EHOSTDOWN',
  'ENETUNREACH',
  'ENETDOWN',
  'ENOTFOUND',
  'EAI_AGAIN',
])

/** The message `pg-pool` uses when no slot became free in time. */
const NO_FREE_SLOT = 'timeout exceeded when trying to connect'

/** `pg` and `pg-pool` give these errors no code; their text is the only mark. */
const UNAVAILABLE_MESSAGES: ReadonlySet<string> = new Set([
  NO_FREE_SLOT,
  'timeout expired',
  'Connection terminated',
  'Connection terminated unexpectedly',
  'Connection terminated due to connection timeout',
  'Client has encountered a connection error and is not queryable',
  'Client was closed and is not queryable',
])

/**
 * Whether an error means that the database cannot be reached at the moment, so that trying later makes sense.
 * A statement that took too long (`QUERY_TIMEOUT`) is not that: the database may be well and the statement slow.
 */
export function isUnavailable(error: unknown): boolean {
  if (error instanceof LeaseholdError) return error.code === 'DATABASE_UNAVAILABLE'
  if (isServerError(error)) return isUnavailableState(error)
  // Happy eyeballs: one error for each address that was tried.
  if (error instanceof AggregateError) return error.errors.length > 0 && error.errors.every(isUnavailable)
  if (!(error instanceof Error)) return false
  if (UNAVAILABLE_MESSAGES.has(error.message)) return true
  const code = 'code' in error ? error.code : undefined
  if (typeof code !== 'string') return false
  // A Unix socket that is not there: its server is not running.
  if (code === 'ENOENT') return 'syscall' in error && error.syscall === 'connect'
  return UNAVAILABLE_SYSTEM_CODES.has(code)
}

function isUnavailableState(error: DatabaseError): boolean {
  if (error.code === undefined) return false
  // PostgreSQL uses 08P01 for a wrong number of parameters too; poolers use it, fatally, when they have no server.
  return UNAVAILABLE_STATES.has(error.code) || (error.code === '08P01' && endsConnection(error))
}

/** Whether the server closes the connection after this error. */
export function endsConnection(error: unknown): boolean {
  return isServerError(error) && (error.severity === 'FATAL' || error.severity === 'PANIC')
}

/** Whether the pool had no connection to give in time, which is a matter of its size and not of the network. */
export function isNoFreeSlot(error: unknown): boolean {
  return error instanceof Error && error.message === NO_FREE_SLOT
}

/** A pooler gave the statement to a server connection on which its name is unknown, or taken. */
export function isPreparedStatementMismatch(error: unknown): boolean {
  return hasState(error, '26000') || hasState(error, '42P05')
}

/** The tables changed under a prepared statement, which from now on fails on its connection every time. */
export function isStalePreparedStatement(error: unknown): boolean {
  return hasState(error, '0A000') && error.routine === 'RevalidateCachedQuery'
}

/** Another transaction was in the way: lock_not_available (`lock_timeout` ran out), deadlock_detected. */
export function isLockConflict(error: unknown): boolean {
  return hasState(error, '55P03') || hasState(error, '40P01')
}

/** The server takes no writes at the moment: a standby, or `default_transaction_read_only`. */
export function isReadOnly(error: unknown): boolean {
  return hasState(error, '25006')
}

/** The statement came after another one of its transaction had failed: in_failed_sql_transaction. */
export function isInFailedTransaction(error: unknown): boolean {
  return hasState(error, '25P02')
}

/** A table, or the schema it would be in, does not exist: undefined_table. */
export function isMissingTable(error: unknown): boolean {
  return hasState(error, '42P01')
}

function hasState(error: unknown, state: string): error is DatabaseError {
  return isServerError(error) && error.code === state
}

/** An error the server sent. Known by its fields, because a user's own copy of `pg` has a class of its own. */
export function isServerError(error: unknown): error is DatabaseError {
  return error instanceof Error && 'severity' in error && 'code' in error && typeof error.code === 'string'
}

/** The same failure as a `LeaseholdError`; one that already is stays as it is. */
export function unavailable(error: unknown, message?: string): LeaseholdError {
  if (isLeaseholdError(error, 'DATABASE_UNAVAILABLE')) return error
  const text = error instanceof Error && error.message !== '' ? error.message : describe(error)
  return new LeaseholdError('DATABASE_UNAVAILABLE', message ?? `The database cannot be reached: ${text}.`, {
    remedy:
      'Check that PostgreSQL runs and that the host and port of the database URL lead to it; the connection returns by itself.',
    cause: error,
  })
}

/** An AggregateError has no message of its own. */
function describe(error: unknown): string {
  return error instanceof AggregateError ? error.errors.map(String).join('; ') : String(error)
}
