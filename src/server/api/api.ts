/**
 * The HTTP API as a Fetch handler: `leasehold serve` and `leasehold up` serve it, and so can any server of the user's.
 *
 * A request is authorised, limited, validated and executed. A change, its entry in the audit and the stored answer of its
 * Idempotency-Key are one transaction. README.md in the folder above describes the parts.
 */
import { inspect } from 'node:util'
import { Hono } from 'hono'
import { mayDo } from '../../admin/api-keys.ts'
import { systemClock } from '../../clock.ts'
import { isLeaseholdError, LeaseholdError } from '../../errors.ts'
import type { LeaseTable } from '../../lease/table.ts'
import { refuseUnknownOptions, namesOf } from '../../nearest.ts'
import type { Database } from '../../postgres/database.ts'
import type { RoleKind } from '../../postgres/permissions.ts'
import { packageVersion } from '../../version.ts'
import type { EndpointsOptions } from '../../webhooks/endpoints/endpoints.ts'
import { actingAs, findRolePrefix, roleSql, within } from './acting.ts'
import { type Authorize, authorizeByKey, type KeyStore, refuseOtherOrigins } from './authorize.ts'
import { BackgroundChanges } from './background-changes.ts'
import { checkIdempotencyKey, findAnswer, requestHash, storeAnswer } from './idempotency.ts'
import { type Allowance, RateLimiter, rateLimitHeaders } from './limits.ts'
import { Live } from './live.ts'
import { openApiDocument } from './openapi.ts'
import { INTERNAL, problemOf, problemResponse, RequestProblem } from './problem.ts'
import { ROUTES } from './resources/index.ts'
import type { Caller, Route } from './route.ts'

export interface ApiOptions {
  /** Its role has to be a member of `leasehold_api`, or a superuser. */
  readonly db: Database
  /** Default `leasehold`. */
  readonly schema?: string
  /** Where the API is mounted. Default `/api/v1`. */
  readonly basePath?: string
  /** Who sends a request. Default: by keys (`leasehold keys create`). Give your own to have it behind your login. */
  readonly authorize?: Authorize
  /** Who a request without a key is; give it only where nobody else can send one. Default: it is refused. */
  readonly withoutKey?: Caller
  /** The address of the client, by which failed attempts are limited. Default: all clients are one. */
  readonly clientAddress?: (request: Request) => string | undefined
  /** For the secrets of endpoints, and which URLs they may have. */
  readonly webhooks?: Pick<EndpointsOptions, 'secretKey' | 'network'>
  /** Lease tables of your own, for `/tables`. */
  readonly tables?: readonly LeaseTable[]
  /** How long a statement may take. Default 5,000. */
  readonly statementTimeoutMs?: number
  /** How many requests a caller may send per second, and at once. Default 50 and 200. */
  readonly requestsPerSecond?: number
  readonly burst?: number
  /** Is called with errors of the server. Default: they are written to stderr. */
  readonly onError?: (error: unknown) => void
}

const OPTIONS = namesOf<ApiOptions>({
  db: true,
  schema: true,
  basePath: true,
  authorize: true,
  withoutKey: true,
  clientAddress: true,
  webhooks: true,
  tables: true,
  statementTimeoutMs: true,
  requestsPerSecond: true,
  burst: true,
  onError: true,
})

/** What routes need besides the database. */
export interface ApiContext {
  readonly schema: string
  readonly webhooks: Pick<EndpointsOptions, 'secretKey' | 'network'>
  readonly tables: readonly LeaseTable[]
  readonly changes: BackgroundChanges
  readonly live: Live
  readonly keys: KeyStore
}

export interface Api {
  /** Answers a request. It never rejects. */
  fetch(request: Request): Promise<Response>
  /** Continues background changes that other processes have left. Call it once, when the server has started. */
  resumeChanges(): Promise<void>
  /** Ends live updates and background changes; these continue in another process, or after the next start. */
  stop(): Promise<void>
}

const MAX_BODY_BYTES = 1_048_576

/** Failed attempts of one client: a few at once, then one every six seconds. */
const FAILED_ATTEMPTS = { burst: 10, perSecond: 1 / 6 }

const HEADERS = { 'cache-control': 'no-store', 'x-content-type-options': 'nosniff' }

export function createApi(options: ApiOptions): Api {
  refuseUnknownOptions('createApi', options, OPTIONS)
  const { db, schema = 'leasehold', basePath = '/api/v1', statementTimeoutMs = 5_000 } = options
  const { requestsPerSecond = 50, burst = 200, tables = [], webhooks = {} } = options
  const { clientAddress = () => undefined, onError = reportOnStderr } = options
  const prefix = rememberSuccess(async () => findRolePrefix(db))
  const keys: KeyStore = { db, schema, prefix, statementTimeoutMs }
  const authorize = options.authorize ?? authorizeByKey(keys)
  const requests = new RateLimiter({ burst, perSecond: requestsPerSecond }, systemClock)
  const failures = new RateLimiter(FAILED_ATTEMPTS, systemClock)
  const live = new Live({ db, schema, prefix, statementTimeoutMs, onError })
  const changes = new BackgroundChanges({ db, schema, prefix, onError })
  const context: ApiContext = { schema, webhooks, tables, changes, live, keys }

  async function identify(request: Request): Promise<Caller> {
    const caller = await authorize(request)
    if (caller !== undefined) return caller
    const hasKey = request.headers.has('authorization')
    if (options.withoutKey !== undefined && !hasKey) return options.withoutKey
    throw new LeaseholdError('KEY_INVALID', 'The request has no valid key.', {
      remedy: 'Send `Authorization: Bearer <key>`; `leasehold keys create` creates a key.',
    })
  }

  async function handle(request: Request, route: Route, params: unknown): Promise<Response> {
    const address = clientAddress(request) ?? 'unknown'
    const allowance = failures.look(address)
    if (!allowance.allowed) throw tooMany('attempts with a wrong key', allowance)
    try {
      const caller = route.isOpen ? NOBODY : await identify(request)
      return await answerTo(request, route, params, caller)
    } catch (error) {
      if (isLeaseholdError(error, 'KEY_INVALID')) failures.take(address)
      throw error
    }
  }

  async function answerTo(
    request: Request,
    route: Route,
    params: unknown,
    caller: Caller,
  ): Promise<Response> {
    const allowance = requests.take(caller.principal)
    const headers = new Headers({ ...HEADERS, ...rateLimitHeaders(allowance) })
    try {
      if (!allowance.allowed) throw tooMany('requests', allowance)
      refuseOtherOrigins(request)
      refuseUnlessPermitted(route, caller)
      if (route.isStream) return live.respond(request)
      const { status, answer, replayed } = await execute(request, route, params, caller, headers)
      if (replayed) headers.set('idempotency-replayed', 'true')
      return respond(status, answer, headers)
    } catch (error) {
      if (isLeaseholdError(error, 'KEY_INVALID')) throw error
      return failed(error, Object.fromEntries(headers))
    }
  }

  async function execute(
    request: Request,
    route: Route,
    params: unknown,
    caller: Caller,
    headers: Headers,
  ): Promise<{ readonly status: number; readonly answer: unknown; readonly replayed: boolean }> {
    const { body, text } = route.body === undefined ? NO_BODY : await readBody(request)
    const url = new URL(request.url)
    const given = { params, query: queryOf(url), body }
    const readOnly = route.method === 'GET' || route.isOpen
    const role = route.databaseRole ?? roleOf(caller)
    const { tenant, principal } = caller
    const acting = { role, tenant, principal, statementTimeoutMs, readOnly }
    const later: (() => void)[] = []
    const rest = {
      request,
      schema,
      caller,
      context,
      headers,
      afterwards: (act: () => void) => void later.push(act),
    }
    const rolePrefix = await prefix()
    if (readOnly) {
      const answer = await route.run(given, { ...rest, db: actingAs(db, acting, rolePrefix) })
      return { status: route.status, answer, replayed: false }
    }
    const key = request.headers.get('idempotency-key')
    if (key !== null) checkIdempotencyKey(key)
    const idempotent =
      key === null || route.method !== 'POST'
        ? undefined
        : { schema, principal, key, hash: requestHash(route.method, url.pathname, text) }
    const result = await actingAs(db, { ...acting, role: 'api' }, rolePrefix).transaction(async (tx) => {
      const before = idempotent && (await findAnswer(tx, idempotent))
      if (before !== undefined) return { ...before, replayed: true }
      await tx.query({ text: roleSql(role, rolePrefix) })
      const answer = await route.run(given, { ...rest, db: within(tx) })
      if (idempotent !== undefined) {
        await tx.query({ text: roleSql('api', rolePrefix) })
        await storeAnswer(tx, idempotent, { status: route.status, answer: withoutSecrets(answer, route) })
      }
      return { status: route.status, answer, replayed: false }
    })
    if (!result.replayed) for (const act of later) act()
    return result
  }

  function failed(error: unknown, headers: Readonly<Record<string, string>> = {}): Response {
    const problem = problemOf(error)
    if (problem === undefined || problem.status >= 500) onError(error)
    const retry: Record<string, string> =
      error instanceof TooMany ? { 'retry-after': String(error.retryInSeconds) } : {}
    return problemResponse(problem ?? INTERNAL, { ...HEADERS, ...headers, ...retry })
  }

  const app = new Hono()
  for (const route of ROUTES) {
    const path = `${basePath}${route.path.replaceAll(/\{(\w+)\}/g, ':$1')}`
    app.on(route.method, path, async (c) => handle(c.req.raw, route, c.req.param()))
  }
  const document = openApiDocument(ROUTES, { basePath, version: packageVersion() })
  app.get(`${basePath}/openapi.json`, (c) => c.json(document, 200, HEADERS))
  app.notFound((c) => failed(notFound(c.req.method, c.req.path)))
  app.onError((error) => failed(error))

  return {
    fetch: async (request) => app.fetch(request),
    resumeChanges: async () => changes.resumeLeft(),
    async stop() {
      live.stop()
      await changes.stop()
    },
  }
}

/** Whoever opens a session. */
const NOBODY: Caller = { principal: 'nobody', role: 'read', tenant: null }

/** The database role of a request. A tenant has one role; whether it may write is decided by the key's role. */
function roleOf({ role, tenant }: Caller): RoleKind {
  if (tenant !== null) return 'tenant'
  return role === 'read' ? 'reader' : 'operator'
}

function refuseUnlessPermitted({ role, forTenants, isOpen }: Route, caller: Caller): void {
  if (isOpen) return
  if (caller.tenant !== null && !forTenants)
    throw new LeaseholdError(
      'ROLE_TOO_LOW',
      `The key ${JSON.stringify(caller.principal)} is limited to the tenant ${JSON.stringify(caller.tenant)}, and this concerns all of them.`,
      { remedy: 'Use a key without a tenant.' },
    )
  if (!mayDo(caller.role, role))
    throw new LeaseholdError(
      'ROLE_TOO_LOW',
      `The key ${JSON.stringify(caller.principal)} has the role ${caller.role}, and this needs ${role}.`,
      { remedy: `Use a key with the role ${role}.` },
    )
}

class TooMany extends LeaseholdError {
  readonly retryInSeconds: number

  constructor(what: string, { limit, retryInSeconds }: Allowance) {
    super('TOO_MANY_REQUESTS', `There were too many ${what}: more than ${limit} at once.`, {
      remedy: `Wait for ${retryInSeconds} s, as Retry-After says.`,
    })
    this.retryInSeconds = retryInSeconds
  }
}

function tooMany(what: string, allowance: Allowance): TooMany {
  return new TooMany(what, allowance)
}

function notFound(method: string, path: string): LeaseholdError {
  return new LeaseholdError('ROUTE_NOT_FOUND', `There is no ${method} ${path}.`, {
    remedy: 'openapi.json, at the base path, lists what there is.',
  })
}

const NO_BODY = { body: undefined, text: '' }

async function readBody(request: Request): Promise<{ readonly body: unknown; readonly text: string }> {
  const type = request.headers.get('content-type')?.split(';', 1)[0]?.trim().toLowerCase()
  const text = await readText(request)
  if (text === '') return NO_BODY
  if (type !== 'application/json')
    throw new RequestProblem([
      { field: 'header.content-type', detail: `is ${type ?? 'missing'}; give application/json` },
    ])
  try {
    return { body: JSON.parse(text), text }
  } catch {
    throw new RequestProblem([{ field: 'body', detail: 'is not valid JSON' }])
  }
}

/** The length that a client states need not be true. */
async function readText(request: Request): Promise<string> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of request.body ?? []) {
    bytes += chunk.byteLength
    if (bytes > MAX_BODY_BYTES)
      throw new LeaseholdError('BODY_TOO_LARGE', `The body has more than ${MAX_BODY_BYTES} bytes.`, {
        remedy: 'Send less at a time.',
        field: 'body',
      })
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}

/** A parameter that is given more than once is a list. */
function queryOf({ searchParams }: URL): Record<string, string | string[]> {
  const names = new Set(searchParams.keys())
  return Object.fromEntries(
    [...names].map((name) => {
      const [first = '', ...others] = searchParams.getAll(name)
      return [name, others.length === 0 ? first : [first, ...others]]
    }),
  )
}

function respond(status: number, answer: unknown, headers: Headers): Response {
  if (status === 204) return new Response(null, { status, headers })
  headers.set('content-type', 'application/json')
  return new Response(JSON.stringify(answer), { status, headers })
}

/** What is shown once is not stored. */
function withoutSecrets(answer: unknown, { secrets }: Route): unknown {
  if (typeof answer !== 'object' || answer === null || secrets.length === 0) return answer
  return Object.fromEntries(Object.entries(answer).filter(([name]) => !secrets.includes(name)))
}

/** Calls it until it succeeds once, and then returns what it returned. */
function rememberSuccess<Value>(find: () => Promise<Value>): () => Promise<Value> {
  let found: Promise<Value> | undefined
  return async () => {
    found ??= find().catch((error: unknown) => {
      found = undefined
      throw error
    })
    return found
  }
}

function reportOnStderr(error: unknown): void {
  process.stderr.write(`${inspect(error)}\n`)
}
