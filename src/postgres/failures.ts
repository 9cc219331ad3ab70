import type { DatabaseError } from 'pg'
import { LeaseholdError, isLeaseholdError, messageOf } from '../errors.ts'

/** SQLSTATEs of a server that is shutting down, starting up, or out of connections. */
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

/**
 * System errors that mean the server cannot be reached. A host name that does not resolve is one of them: in a
 * container network the name exists only while the server's container runs.
 */
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

/** The message of `pg-pool` when no connection became free in time. */
const NO_FREE_CONNECTION = 'timeout exceeded when trying to connect'

/** `pg` and `pg-pool` give these errors no code, so they are recognised by their message. */
const UNAVAILABLE_MESSAGES: ReadonlySet<string> = new Set([
  NO_FREE_CONNECTION,
  'timeout expired',
  'Connection terminated',
  'Connection terminated unexpectedly',
  'Connection terminated due to connection timeout',
  'Client has encountered a connection error and is not queryable',
  'Client was closed and is not queryable',
])

/**
 * Whether an error means that the database cannot be reached at the moment, so that a later attempt may succeed.
 * A statement that took too long (`QUERY_TIMEOUT`) is not such an error: the database may be healthy and the
 * statement slow.
 */
export function isUnavailable(error: unknown): boolean {
  if (error instanceof LeaseholdError) return error.code === 'DATABASE_UNAVAILABLE'
  if (isServerError(error)) return isUnavailableState(error)
  // Node tries every address of a host name ("happy eyeballs") and reports one error for each.
  if (error instanceof AggregateError) return error.errors.length > 0 && error.errors.every(isUnavailable)
  if (!(error instanceof Error)) return false
  if (UNAVAILABLE_MESSAGES.has(error.message)) return true
  const code = 'code' in error ? error.code : undefined
  if (typeof code !== 'string') return false
  // The file of the Unix socket does not exist: its server is not running.
  if (code === 'ENOENT') return 'syscall' in error && error.syscall === 'connect'
  return UNAVAILABLE_SYSTEM_CODES.has(code)
}

function isUnavailableState(error: DatabaseError): boolean {
  if (error.code === undefined) return false
  // PostgreSQL also uses 08P01 for a wrong number of parameters. Poolers send it as FATAL when they have no server.
  if (isUnsupportedParameter(error)) return false
  return UNAVAILABLE_STATES.has(error.code) || (error.code === '08P01' && endsConnection(error))
}

/** A pooler refuses a parameter of the URL, such as `options` or `statement_timeout`. It will refuse it next time as well. */
export function isUnsupportedParameter(error: unknown): boolean {
  return isServerError(error) && /unsupported startup parameter/.test(error.message)
}

/** Whether the server closes the connection after this error. */
export function endsConnection(error: unknown): boolean {
  return isServerError(error) && (error.severity === 'FATAL' || error.severity === 'PANIC')
}

/** Whether the pool had no free connection in time. The remedy is its size, not the network. */
export function isNoFreeConnection(error: unknown): boolean {
  return error instanceof Error && error.message === NO_FREE_CONNECTION
}

/** A pooler sent the statement to a server connection on which its name is unknown, or already in use. */
export function isPreparedStatementMismatch(error: unknown): boolean {
  return hasState(error, '26000') || hasState(error, '42P05')
}

/** A table of a prepared statement was altered. From now on the statement always fails on this connection. */
export function isStalePreparedStatement(error: unknown): boolean {
  return hasState(error, '0A000') && error.routine === 'RevalidateCachedQuery'
}

/** Another transaction held the lock: lock_not_available (after `lock_timeout`), or deadlock_detected. */
export function isLockConflict(error: unknown): boolean {
  return hasState(error, '55P03') || hasState(error, '40P01')
}

/** The server accepts no writes at the moment: a standby, or `default_transaction_read_only`. */
export function isReadOnly(error: unknown): boolean {
  return hasState(error, '25006')
}

/** The statement came after another one of its transaction had failed: in_failed_sql_transaction. */
export function isInFailedTransaction(error: unknown): boolean {
  return hasState(error, '25P02')
}

/**
 * A table, or the schema it would be in, does not exist: undefined_table. Where a statement begins with the number of
 * buckets, it is that function or the schema that is missing: undefined_function, invalid_schema_name.
 */
export function isMissingTable(error: unknown): boolean {
  return (
    hasState(error, '42P01') ||
    hasState(error, '3F000') ||
    (hasState(error, '42883') && error.message.includes('bucket_count'))
  )
}

/** The server has no connection left for this role: too_many_connections. */
function isTooManyConnections(error: unknown): error is DatabaseError {
  return hasState(error, '53300')
}

function hasState(error: unknown, state: string): error is DatabaseError {
  return isServerError(error) && error.code === state
}

/** An error that the server sent. It is recognised by its fields: a user's own copy of `pg` has its own error class. */
export function isServerError(error: unknown): error is DatabaseError {
  return error instanceof Error && 'severity' in error && 'code' in error && typeof error.code === 'string'
}

/** The same failure as a `LeaseholdError`. An error that already is one is returned unchanged. */
export function unavailable(error: unknown, message?: string): LeaseholdError {
  if (isLeaseholdError(error, 'DATABASE_UNAVAILABLE')) return error
  if (isTooManyConnections(error)) return outOfConnections(error)
  return new LeaseholdError(
    'DATABASE_UNAVAILABLE',
    message ?? `The database cannot be reached: ${messageOf(error)}.`,
    {
      remedy:
        'Check that PostgreSQL runs and that the host and port of the database URL lead to it; the connection returns by itself.',
      cause: error,
    },
  )
}

function outOfConnections(error: Error): LeaseholdError {
  return new LeaseholdError(
    'DATABASE_UNAVAILABLE',
    `The server has no connection left for this process: ${error.message}.`,
    {
      remedy:
        'Lower maxConnections (--max-connections, LEASEHOLD_MAX_CONNECTIONS) of the processes, run fewer of them, put a pooler before the server, or raise its max_connections; docs/operations/connections.md says which connections a process opens.',
      cause: error,
    },
  )
}

export interface BackOff {
  readonly firstMs: number
  readonly longestMs: number
}

/**
 * The pause after this many failures in a row. It doubles with every failure up to `longestMs`; up to half of it is
 * random, so that many processes do not return at the same moment.
 */
export function pauseAfter(failures: number, { firstMs, longestMs }: BackOff, random: () => number): number {
  const pause = Math.min(longestMs, firstMs * 2 ** Math.max(0, failures - 1))
  return Math.round(pause * (0.5 + random() / 2))
}
