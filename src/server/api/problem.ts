/** Errors as `application/problem+json` (RFC 9457), with the code, the field and the remedy. */
import { type ErrorCode, isLeaseholdError, LeaseholdError } from '../../errors.ts'

export interface FieldProblem {
  /** Where: `body.limit`, `query.status`, `path.id`. */
  readonly field: string
  readonly detail: string
}

export interface Problem {
  readonly type: string
  readonly title: string
  readonly status: number
  readonly detail: string
  readonly code: ErrorCode | 'INTERNAL'
  readonly remedy?: string
  readonly errors?: readonly FieldProblem[]
}

/** What is wrong with the fields of a request. */
export class RequestProblem extends LeaseholdError {
  readonly problems: readonly FieldProblem[]

  constructor(problems: readonly FieldProblem[]) {
    const all = problems.map(({ field, detail }) => `${field}: ${detail}`).join('; ')
    super('REQUEST_INVALID', `Nothing was changed: ${all}.`, { remedy: 'Correct what is named.' })
    this.problems = problems
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

const RETRY_AFTER_SECONDS = { 429: 1, 503: 5 } as const

/** The response to a request that failed; undefined: the error is one of the server, and belongs into its log. */
export function problemOf(error: unknown): Problem | undefined {
  if (!isLeaseholdError(error)) return undefined
  const { code, remedy, field, message } = error
  const kind = error instanceof IdempotencyConflict ? error.kind : KINDS[code]
  if (kind === undefined) return undefined
  const detail = remedy === undefined ? message : message.slice(0, -remedy.length).trimEnd()
  const errors =
    error instanceof RequestProblem ? error.problems : field === undefined ? undefined : [{ field, detail }]
  return {
    type: `urn:leasehold:error:${code.toLowerCase()}`,
    ...kind,
    detail,
    code,
    ...(remedy === undefined ? {} : { remedy }),
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
      ...headers,
    },
  })
}
