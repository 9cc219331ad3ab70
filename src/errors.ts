/**
 * Every error Leasehold throws on purpose is a `LeaseholdError` with one of these codes.
 * `docs/reference/errors.md` has the cause and the remedy of each; a test keeps the two in step.
 */
export const ERROR_CODES = [
  'SETTING_INVALID',
  'LEASE_TABLE_INVALID',
  'LEASE_TABLE_MISMATCH',
  'LEASE_LOST',
  'FENCED_OFF',
  'DATABASE_UNAVAILABLE',
  'QUERY_TIMEOUT',
  'LISTEN_UNAVAILABLE',
  'PERMISSION_DENIED',
  'DATABASE_CLOSED',
  'MIGRATION_CHANGED',
  'MIGRATION_FAILED',
  'EMBEDDED_MISSING',
  'EMBEDDED_FAILED',
  'EVENT_NOT_FOUND',
  'REQUEST_INVALID',
  'PUBLISHER_MISSING',
  'EVENT_INVALID',
  'EVENT_TOO_LARGE',
  'WRITER_INVALID',
  'WEBHOOK_INVALID',
  'SECRET_KEY_INVALID',
  'SECRET_DAMAGED',
  'ENDPOINT_NOT_FOUND',
  'DELIVERY_NOT_FOUND',
  'JOB_NOT_FOUND',
  'ROW_NOT_FOUND',
  'WORKER_NOT_FOUND',
  'WORKER_ID_TAKEN',
  'CHANGE_NOT_FOUND',
  'KEY_NOT_FOUND',
  'STATE_CONFLICT',
  'KEY_INVALID',
  'ROLE_TOO_LOW',
  'POLICY_MISSING',
  'ROUTE_NOT_FOUND',
  'BODY_TOO_LARGE',
  'IDEMPOTENCY_CONFLICT',
  'TOO_MANY_REQUESTS',
  'DASHBOARD_MISSING',
  'DRAIN_INCOMPLETE',
] as const

export type ErrorCode = (typeof ERROR_CODES)[number]

export interface ErrorOptions {
  /** What to do about the error: one sentence that a person can act on. */
  readonly remedy?: string
  /** The field of the request that is wrong. */
  readonly field?: string
  /** What is wrong with each field, where several can be. */
  readonly problems?: readonly FieldProblem[]
  readonly cause?: unknown
}

export interface FieldProblem {
  readonly field: string
  readonly detail: string
}

/** An error with a stable code. The message already contains the remedy, so printing the message is enough. */
export class LeaseholdError extends Error {
  override readonly name = 'LeaseholdError'
  readonly code: ErrorCode
  readonly remedy: string | undefined
  readonly field: string | undefined
  readonly problems: readonly FieldProblem[] | undefined

  constructor(code: ErrorCode, message: string, options: ErrorOptions = {}) {
    const text = options.remedy === undefined ? message : `${message} ${options.remedy}`
    super(text, options.cause === undefined ? undefined : { cause: options.cause })
    this.code = code
    this.remedy = options.remedy
    this.field = options.field
    this.problems = options.problems
  }
}

/** Whether an error is a `LeaseholdError`, and has this code if one is given. */
export function isLeaseholdError(error: unknown, code?: ErrorCode): error is LeaseholdError {
  return error instanceof LeaseholdError && (code === undefined || error.code === code)
}

/** Whether an error has one of these codes: that of a system call (`ENOENT`) or an SQLSTATE (`57P03`). */
export function hasCode(error: unknown, ...codes: readonly string[]): boolean {
  return (
    typeof error === 'object' &&
    error !== null &&
    'code' in error &&
    typeof error.code === 'string' &&
    codes.includes(error.code)
  )
}

/**
 * The message of an error; of any other value that was thrown, its text. A refused connection to a name with several
 * addresses is an AggregateError without a message of its own.
 */
export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.message !== '') return error.message
  if (error instanceof AggregateError) return error.errors.map((each) => messageOf(each)).join('; ')
  return error.name
}

/** A text that is quoted in a message, with exactly one mark at its end. */
export function sentence(text: string): string {
  return /[.?!…]$/.test(text) ? text : `${text}.`
}

/** An error message of a library may quote a connection URL; its password must not be logged (WH-NFR-003). */
export function withoutUrlPasswords(text: string): string {
  return text.replaceAll(/(\w:\/\/[^\s:@/"?#]*):[^\s"/?#]+@/g, '$1:***@')
}
