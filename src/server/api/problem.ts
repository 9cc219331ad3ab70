/** Errors as `application/problem+json` (RFC 9457), with the code, the field and the remedy. */
import { type ErrorCode, type FieldProblem, hasCode, isLeaseholdError, LeaseholdError } from '../../errors.ts'

export interface Problem {
  readonly type: string
  readonly title: string
  readonly status: number
  readonly detail: string
  readonly code: ErrorCode | 'INTERNAL'
  readonly remedy?: string
  readonly errors?: readonly FieldProblem[]
}

/** What is wrong with the fields of a request. Each says where it is: `body.limit`, `query.status`, `path.id`. */
export class RequestProblem extends LeaseholdError {
  constructor(problems: readonly FieldProblem[]) {
    const all = problems.map(({ field, detail }) => `${field}: ${detail}`).join('; ')
    super('REQUEST_INVALID', `Nothing was changed: ${all}.`, { remedy: 'Correct what is named.', problems })
  }
}

interface Kind {
  readonly status: number
  readonly title: string
}

const UNPROCESSABLE = { status: 422, title: 'The request is invalid' }
const NOT_FOUND = { status: 404, title: 'Not found' }
const UNAVAILABLE = { status: 503, title: 'The database cannot answer' }

/** The codes that a request can meet. Any other is an error of the server. */
const KINDS: Readonly<Partial<Record<ErrorCode, Kind>>> = {
  REQUEST_INVALID: UNPROCESSABLE,
  SETTING_INVALID: UNPROCESSABLE,
  EVENT_INVALID: UNPROCESSABLE,
  EVENT_TOO_LARGE: UNPROCESSABLE,
  WEBHOOK_INVALID: UNPROCESSABLE,
  EVENT_NOT_FOUND: NOT_FOUND,
  ENDPOINT_NOT_FOUND: NOT_FOUND,
  DELIVERY_NOT_FOUND: NOT_FOUND,
  JOB_NOT_FOUND: NOT_FOUND,
  ROW_NOT_FOUND: NOT_FOUND,
  WORKER_NOT_FOUND: NOT_FOUND,
  CHANGE_NOT_FOUND: NOT_FOUND,
  KEY_NOT_FOUND: NOT_FOUND,
  ROUTE_NOT_FOUND: NOT_FOUND,
  STATE_CONFLICT: { status: 409, title: 'The state does not allow it' },
  KEY_INVALID: { status: 401, title: 'A valid key is needed' },
  ROLE_TOO_LOW: { status: 403, title: 'The key may not do that' },
  BODY_TOO_LARGE: { status: 413, title: 'The body is too large' },
  TOO_MANY_REQUESTS: { status: 429, title: 'Too many requests' },
  DATABASE_UNAVAILABLE: UNAVAILABLE,
  QUERY_TIMEOUT: UNAVAILABLE,
  PERMISSION_DENIED: UNAVAILABLE,
  POLICY_MISSING: { status: 503, title: 'The database does not keep tenants apart' },
  SECRET_KEY_INVALID: { status: 503, title: 'The server lacks a key for secrets' },
}

/** An Idempotency-Key is in use by a request that is not answered yet, or was used for another one. */
const IN_PROGRESS: Kind = { status: 409, title: 'The same request is in progress' }
const REUSED: Kind = { status: 422, title: 'The Idempotency-Key was used for another request' }

export class IdempotencyConflict extends LeaseholdError {
  readonly kind: Kind

  constructor(kind: 'inProgress' | 'reused', message: string, remedy: string) {
    super('IDEMPOTENCY_CONFLICT', message, { remedy, field: 'header.idempotency-key' })
    this.kind = kind === 'inProgress' ? IN_PROGRESS : REUSED
  }
}

/** There is something at this address, but not with this method. */
export class WrongMethod extends LeaseholdError {
  readonly kind: Kind = { status: 405, title: 'Another method is needed' }
  readonly allowed: string

  constructor(method: string, path: string, allowed: readonly string[]) {
    super('ROUTE_NOT_FOUND', `There is no ${method} ${path}.`, { remedy: `Use ${allowed.join(' or ')}.` })
    this.allowed = allowed.join(', ')
  }
}

/**
 * What the database refuses for reasons of the moment: a statement that took too long or waited too long for a lock, two
 * changes at the same time, a server that takes no writes. Any other error is returned unchanged.
 */
export function explainDatabaseError(error: unknown, statementTimeoutMs: number): unknown {
  // query_canceled, lock_not_available
  if (hasCode(error, '57014', '55P03'))
    return new LeaseholdError(
      'QUERY_TIMEOUT',
      `A statement did not finish within ${statementTimeoutMs} ms.`,
      {
        remedy: 'Ask for less, or once more a little later: others may have locked what it needs.',
        cause: error,
      },
    )
  // serialization_failure, deadlock_detected
  if (hasCode(error, '40001', '40P01'))
    return new LeaseholdError('STATE_CONFLICT', 'Somebody else changed the same at the same time.', {
      remedy: 'Send the request once more.',
      cause: error,
    })
  // read_only_sql_transaction
  if (hasCode(error, '25006'))
    return new LeaseholdError('DATABASE_UNAVAILABLE', 'The database takes no writes at the moment.', {
      remedy: 'Send the request once more a little later.',
      cause: error,
    })
  return error
}

const RETRY_AFTER_SECONDS = { 429: 1, 503: 5 } as const

const AWAY_REMEDY = 'Send the request again a little later, as Retry-After says.'

/** The response to a request that failed; undefined: the error is one of the server, and belongs into its log. */
export function problemOf(
  error: unknown,
  locate: (field: string) => string = (field) => field,
): Problem | undefined {
  if (!isLeaseholdError(error)) return undefined
  const { code, remedy, field, message } = error
  const hasOwnKind = error instanceof IdempotencyConflict || error instanceof WrongMethod
  const kind = hasOwnKind ? error.kind : KINDS[code]
  if (kind === undefined) return undefined
  // Where the database is, and why it cannot be reached, is nobody's business without a key.
  const isAway = code === 'DATABASE_UNAVAILABLE'
  const said = remedy === undefined ? message : message.slice(0, -remedy.length).trimEnd()
  const detail = isAway ? 'The database cannot be reached at the moment.' : said
  const single = field === undefined ? undefined : [{ field, detail }]
  const errors = (error.problems ?? single)?.map((each) => ({ ...each, field: locate(each.field) }))
  return {
    type: `urn:leasehold:error:${code.toLowerCase()}`,
    ...kind,
    detail,
    code,
    ...(isAway ? { remedy: AWAY_REMEDY } : remedy === undefined ? {} : { remedy }),
    ...(errors === undefined ? {} : { errors }),
  }
}

/** What a client is told of an error of the server: nothing but that there was one. */
export const INTERNAL: Problem = {
  type: 'about:blank',
  title: 'The request failed',
  status: 500,
  detail: 'The request failed; the log of the server has the details.',
  code: 'INTERNAL',
}

export function problemResponse(problem: Problem, headers: Readonly<Record<string, string>> = {}): Response {
  const retryAfter =
    problem.status === 429 || problem.status === 503 ? RETRY_AFTER_SECONDS[problem.status] : undefined
  return new Response(JSON.stringify(problem), {
    status: problem.status,
    headers: {
      'content-type': 'application/problem+json',
      ...(retryAfter === undefined ? {} : { 'retry-after': String(retryAfter) }),
      ...(problem.status === 401 ? { 'www-authenticate': 'Bearer' } : {}),
      // The rest of the body is not read, so that the connection cannot be used for another request.
      ...(problem.status === 413 ? { connection: 'close' } : {}),
      ...headers,
    },
  })
}
