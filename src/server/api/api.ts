/**
 * The HTTP API as a Fetch handler: `leasehold serve` and `leasehold up` serve it, and so can any server of the user's.
 *
 * A request is authorised, limited, validated and executed. A change, its entry in the audit and the stored answer of its
 * Idempotency-Key are one transaction. README.md in the folder above describes the parts.
 */
import { inspect } from 'node:util'
import { Hono } from 'hono'
import { KEY_ROLES, mayDo } from '../../admin/api-keys.ts'
import { systemClock } from '../../clock.ts'
import { isLeaseholdError, LeaseholdError } from '../../errors.ts'
import { unstorableText } from '../../unstorable-text.ts'
import { type LeaseTable, tableName } from '../../lease/table.ts'
import { refuseUnknownOptions, namesOf } from '../../nearest.ts'
import type { Database } from '../../postgres/database.ts'
import type { RoleKind } from '../../postgres/permissions.ts'
import { MAX_TIMER_MS } from '../../timeout.ts'
import { packageVersion } from '../../version.ts'
import type { EndpointsOptions } from '../../webhooks/endpoints/endpoints.ts'
import type { WorkDeclaration } from '../../worker/work-declaration.ts'
import { actingAs, findRolePrefix, roleSql, within } from './acting.ts'
import {
  type Authorize,
  authorizeByKey,
  type KeyStore,
  refuseOtherOrigins,
  type RequestEnv,
  carriesKey,
} from './authorize.ts'
import { BackgroundChanges } from './background-changes.ts'
import { checkIdempotencyKey, findAnswer, requestHash, storeAnswer } from './idempotency.ts'
import { type Allowance, RateLimiter, rateLimitHeaders } from './limits.ts'
import { Live } from './live.ts'
import { openApiDocument } from './openapi.ts'
import {
  explainDatabaseError,
  INTERNAL,
  problemOf,
  problemResponse,
  RequestProblem,
  WrongMethod,
} from './problem.ts'
import { ROUTES } from './resources/index.ts'
import { type Caller, locateField, type Method, type Route } from './route.ts'

export interface ApiOptions {
  /** Its role has to be a member of `leasehold_api`, or a superuser. */
  readonly db: Database
  /** Default `leasehold`. */
  readonly schema?: string
  /** Where the API is mounted: an empty text, or a path that begins with a slash. Default `/api/v1`. */
  readonly basePath?: string
  /** Who sends a request. Default: by keys (`leasehold keys create`). Give your own to have it behind your login. */
  readonly authorize?: Authorize
  /** Who a request without a key is; give it only where nobody else can send one. Default: it is refused. */
  readonly withoutKey?: Caller
  /**
   * The address of the client, by which failed attempts are limited. Behind a proxy, read the header that it sets. Default:
   * that of the connection, where the server is one of Node.js.
   */
  readonly clientAddress?: (request: Request) => string | undefined
  /** For the secrets of endpoints, and which URLs they may have. */
  readonly webhooks?: Pick<EndpointsOptions, 'secretKey' | 'network'>
  /** Lease tables of your own, for `/tables`. Give the declarations of their workers, so that explanations know these. */
  readonly tables?: readonly (LeaseTable | WorkerOfOwnTable)[]
  /** How long a statement may take. Default 5,000. */
  readonly statementTimeoutMs?: number
  /** How many requests a caller may send per second, and at once. Default 50 and 200. */
  readonly requestsPerSecond?: number
  readonly burst?: number
  /** Is called with errors of the server. Default: they are written to stderr. */
  readonly onError?: (error: unknown) => void
}

/** A worker, as far as the API knows it. */
export type WorkerOfOwnTable = Pick<WorkDeclaration<never>, 'name' | 'table' | 'bucket'>

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
  /** The workers of these tables, as far as they are known. */
  readonly workers: readonly WorkerOfOwnTable[]
  readonly changes: BackgroundChanges
  readonly live: Live
  readonly keys: KeyStore
}

export interface Api {
  /**
   * Answers a request. It never rejects.
   *
   * @param env is given to `authorize`. Servers of Node.js give `{ incoming }`, by which the address of the client is known.
   */
  fetch(request: Request, env?: object): Promise<Response>
  /**
   * Continues background changes that other processes have left, now and every minute, and forgets old answers. Call it once,
   * when the server has started.
   */
  resumeChanges(): Promise<void>
  /** Ends live updates and background changes; these continue in another process, or after the next start. */
  stop(): Promise<void>
}

/** A request, and the route that it goes to. */
interface Asked {
  readonly request: Request
  readonly env: RequestEnv
  readonly route: Route
  readonly params: unknown
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
  checkOptions({ basePath, statementTimeoutMs, requestsPerSecond, burst })
  const prefix = rememberSuccess(async () => findRolePrefix(db))
  const keys: KeyStore = { db, schema, prefix, statementTimeoutMs }
  const authorize = options.authorize ?? authorizeByKey(keys)
  const requests = new RateLimiter({ burst, perSecond: requestsPerSecond }, systemClock)
  const failures = new RateLimiter(FAILED_ATTEMPTS, systemClock)
  const live = new Live({ db, schema, prefix, statementTimeoutMs, onError })
  const changes = new BackgroundChanges({ db, schema, prefix, onError })
  const context: ApiContext = { schema, webhooks, ...ownTables(tables), changes, live, keys }

  async function identify({ request, env }: Asked): Promise<Caller> {
    const caller = await authorize(request, env)
    if (caller !== undefined && caller !== null) return ofTenant(checkCaller(caller))
    const hasKey = request.headers.has('authorization')
    if (options.withoutKey !== undefined && !hasKey) return checkCaller(options.withoutKey)
    throw new LeaseholdError('KEY_INVALID', 'The request has no valid key.', {
      remedy: 'Send `Authorization: Bearer <key>`; `leasehold keys create` creates a key.',
    })
  }

  async function handle(asked: Asked): Promise<Response> {
    const address = clientAddress(asked.request) ?? remoteAddress(asked.env) ?? 'unknown'
    const allowance = failures.look(address)
    try {
      const caller = asked.route.isOpen
        ? { ...NOBODY, principal: `nobody at ${address}` }
        : await identify(asked)
      return await answerTo(asked, caller)
    } catch (error) {
      if (!isLeaseholdError(error, 'KEY_INVALID')) throw error
      // Behind a proxy all clients have one address: wrong keys must not lock out the right ones.
      if (!allowance.allowed) throw new TooMany('attempts with a wrong key', allowance)
      // A request without a key guesses nothing.
      if (asked.route.isOpen || carriesKey(asked.request)) failures.take(address)
      throw error
    }
  }

  async function answerTo(asked: Asked, caller: Caller): Promise<Response> {
    const { request, route } = asked
    const allowance = requests.take(caller.principal)
    const headers = new Headers({ ...HEADERS, ...rateLimitHeaders(allowance) })
    try {
      if (!allowance.allowed) throw new TooMany('requests', allowance)
      refuseOtherOrigins(request)
      refuseUnlessPermitted(route, caller)
      const { status, answer, replayed } = await execute(asked, caller, headers)
      if (replayed) headers.set('idempotency-replayed', 'true')
      return respond(status, answer, headers)
    } catch (error) {
      // `handle` counts it.
      if (isLeaseholdError(error, 'KEY_INVALID')) throw error
      return failed(error, Object.fromEntries(headers), route)
    }
  }

  async function execute(
    asked: Asked,
    caller: Caller,
    headers: Headers,
  ): Promise<{ readonly status: number; readonly answer: unknown; readonly replayed: boolean }> {
    const { request, route, params } = asked
    const { body, text } = await readBody(request)
    const url = new URL(request.url)
    const given = { params, query: queryOf(url), body }
    // Sessions are stored nowhere.
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
      isCurrent: async () => isStillPermitted(asked, caller),
    }
    const rolePrefix = await prefix()
    if (readOnly) {
      const answer = await route.run(given, { ...rest, db: actingAs(db, acting, rolePrefix) })
      return { status: route.status, answer, replayed: false }
    }
    const key = request.headers.get('idempotency-key')
    if (key !== null && route.method === 'POST') checkIdempotencyKey(key)
    const idempotent =
      key === null || route.method !== 'POST'
        ? undefined
        : { schema, principal, key, hash: requestHash(`${caller.role} ${route.method}`, url.pathname, text) }
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

  async function isStillPermitted(asked: Asked, before: Caller): Promise<boolean> {
    try {
      const caller = await identify(asked)
      refuseUnlessPermitted(asked.route, caller)
      return caller.principal === before.principal
    } catch (error) {
      if (isLeaseholdError(error, 'KEY_INVALID') || isLeaseholdError(error, 'ROLE_TOO_LOW')) return false
      throw error
    }
  }

  function failed(thrown: unknown, headers: Readonly<Record<string, string>> = {}, route?: Route): Response {
    const error = explainDatabaseError(thrown, statementTimeoutMs)
    const problem = problemOf(error, (field) => (route === undefined ? field : locateField(route, field)))
    if (problem === undefined || problem.status >= 500) onError(error)
    const more: Record<string, string> =
      error instanceof TooMany
        ? { 'retry-after': String(error.retryInSeconds) }
        : error instanceof WrongMethod
          ? { allow: error.allowed }
          : {}
    return problemResponse(problem ?? INTERNAL, { ...HEADERS, ...headers, ...more })
  }

  const app = new Hono<{ Bindings: RequestEnv }>()
  const pathOf = (path: string): string => `${basePath}${path.replaceAll(/\{(\w+)\}/g, ':$1')}`
  for (const route of ROUTES)
    app.on(route.method, pathOf(route.path), async (c) =>
      handle({ request: c.req.raw, route, params: c.req.param(), env: c.env }),
    )
  const document = openApiDocument(ROUTES, { basePath, version: packageVersion() })
  app.get(`${basePath}/openapi.json`, (c) => c.json(document, 200, HEADERS))
  app.notFound((c) => {
    const { method, path } = c.req
    const allowed = methodsAt(path.slice(basePath.length))
    return failed(allowed.length === 0 ? notFound(method, path) : new WrongMethod(method, path, allowed))
  })
  app.onError((error) => failed(error))

  return {
    fetch: async (request, env) => app.fetch(request, isObject(env) ? env : {}),
    resumeChanges: async () => changes.resumeLeft(),
    async stop() {
      live.stop()
      await changes.stop()
    },
  }
}

/**
 * In the audit, which a tenant sees its own entries of, its principals have names that nobody else has: `acme/ci` is not the
 * account `ci` of an operator, nor that of another tenant.
 */
function ofTenant(caller: Caller): Caller {
  const { principal, tenant } = caller
  return tenant === null ? caller : { ...caller, principal: `${tenant}/${principal}` }
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

function methodsAt(path: string): Method[] {
  return ROUTES.filter((route) =>
    new RegExp(`^${route.path.replaceAll(/\{\w+\}/g, '[^/]+')}$`).test(path),
  ).map(({ method }) => method)
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}

/** `@hono/node-server` and servers that are built on it give the request of Node.js. */
function remoteAddress({ incoming }: RequestEnv): string | undefined {
  const socket = isObject(incoming) && 'socket' in incoming ? incoming.socket : undefined
  const address = isObject(socket) && 'remoteAddress' in socket ? socket.remoteAddress : undefined
  return typeof address === 'string' ? address : undefined
}

interface CheckedOptions {
  readonly basePath: string
  readonly statementTimeoutMs: number
  readonly requestsPerSecond: number
  readonly burst: number
}

function checkOptions({ basePath, statementTimeoutMs, requestsPerSecond, burst }: CheckedOptions): void {
  const problems = [
    ...(typeof basePath === 'string' && /^(\/[\w.~-]+)*$/.test(basePath)
      ? []
      : [`basePath is ${inspect(basePath)}; give a path such as /api/v1, without a slash at its end`]),
    ...(Number.isInteger(statementTimeoutMs) && statementTimeoutMs >= 1 && statementTimeoutMs <= MAX_TIMER_MS
      ? []
      : [
          `statementTimeoutMs is ${inspect(statementTimeoutMs)}; give a whole number of milliseconds above 0`,
        ]),
    ...(requestsPerSecond > 0
      ? []
      : [`requestsPerSecond is ${inspect(requestsPerSecond)}; give a number above 0`]),
    ...(burst >= 1 ? [] : [`burst is ${inspect(burst)}; give a number of requests above 0`]),
  ]
  if (problems.length === 0) return
  throw new LeaseholdError('SETTING_INVALID', `The options of createApi: ${problems.join('; ')}.`, {
    remedy: 'Correct the options named.',
  })
}

/** What `authorize` of the user's own returned. A mistake there must not give more than was meant. */
function checkCaller({ principal, role, tenant }: Caller): Caller {
  const isName = (given: unknown): given is string =>
    typeof given === 'string' && given.trim() !== '' && unstorableText(given) === undefined
  const problems = [
    ...(isName(principal)
      ? []
      : [`principal is ${inspect(principal)}; give the name that the audit records`]),
    ...(KEY_ROLES.includes(role) ? [] : [`role is ${inspect(role)}; give ${KEY_ROLES.join(', ')}`]),
    ...(tenant === null || isName(tenant) ? [] : [`tenant is ${inspect(tenant)}; give its name, or null`]),
    ...(tenant !== null && role === 'admin'
      ? ['role is admin, and tenant is not null: an admin has no tenant']
      : []),
  ]
  if (problems.length === 0) return { principal, role, tenant }
  throw new Error(`authorize returned a caller whose ${problems.join('; ')}.`)
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
  if (text.trim() === '') return NO_BODY
  if (type !== 'application/json')
    throw new RequestProblem([
      { field: 'header.content-type', detail: `is ${type ?? 'missing'}; give application/json` },
    ])
  if (depthOf(text) > MAX_DEPTH)
    throw new RequestProblem([{ field: 'body', detail: `is nested more than ${MAX_DEPTH} levels deep` }])
  try {
    return { body: JSON.parse(text), text }
  } catch {
    throw new RequestProblem([{ field: 'body', detail: 'is not valid JSON' }])
  }
}

/** Neither JSON.stringify nor the parser of PostgreSQL can follow any depth: each level is a call. */
const MAX_DEPTH = 500

/** How deep arrays and objects are nested in a JSON text. */
function depthOf(text: string): number {
  let depth = 0
  let deepest = 0
  let isInText = false
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at]
    if (isInText) {
      if (character === '\\') at += 1
      else if (character === '"') isInText = false
    } else if (character === '"') isInText = true
    else if (character === '[' || character === '{') deepest = Math.max(deepest, (depth += 1))
    else if (character === ']' || character === '}') depth -= 1
  }
  return deepest
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
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(chunks))
  } catch {
    throw new RequestProblem([{ field: 'body', detail: 'is not valid UTF-8' }])
  }
}

/** Each table once: several workers may process the same one. */
function ownTables(
  given: readonly (LeaseTable | WorkerOfOwnTable)[],
): Pick<ApiContext, 'tables' | 'workers'> {
  const workers = given.filter((each) => 'table' in each)
  const tables = given.map((each) => ('table' in each ? each.table : each))
  return { tables: [...new Map(tables.map((table) => [tableName(table), table])).values()], workers }
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
  if (answer instanceof Response) {
    for (const [name, value] of headers) answer.headers.append(name, value)
    return answer
  }
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
