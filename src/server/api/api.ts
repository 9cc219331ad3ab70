/**
 * The HTTP API as a Fetch handler: `leasehold serve` and `leasehold up` serve it, and so can any server of the user's.
 *
 * A request is authorised, limited, validated and executed. A change, its entry in the audit and the stored answer of its
 * Idempotency-Key are one transaction. README.md in the folder above describes the parts.
 */
import { inspect } from 'node:util'
import { Hono } from 'hono'
import { systemClock } from '../../clock.ts'
import { isLeaseholdError, LeaseholdError } from '../../errors.ts'
import { type LeaseTable, tableName } from '../../lease/table.ts'
import { refuseUnknownOptions, namesOf } from '../../nearest.ts'
import type { Database } from '../../postgres/database.ts'
import { MAX_TIMER_MS } from '../../timeout.ts'
import { packageVersion } from '../../package-files.ts'
import type { EndpointsOptions } from '../../webhooks/endpoints/endpoints.ts'
import type { WorkDeclaration } from '../../worker/work-declaration.ts'
import { type ActingRoles, actingForServer, findActingRoles } from './acting.ts'
import {
  type Authorize,
  carriesKey,
  isFromPortal,
  refuseOtherOrigins,
  type RequestEnv,
  tokenOf,
} from './authorize.ts'
import { BackgroundChanges } from './background-changes.ts'
import { identifyBy, isStillPermitted, nobody, refuseUnlessPermitted, remoteAddress } from './callers.ts'
import { execute } from './execute.ts'
import { History } from './history.ts'
import { knownTokens } from './known-tokens.ts'
import { ConnectionLimiter, RateLimiter, rateLimitHeaders, TooMany } from './limits.ts'
import { Live } from './live.ts'
import { openApiDocument } from './openapi.ts'
import { explainDatabaseError, INTERNAL, problemOf, problemResponse, WrongMethod } from './problem.ts'
import { receive, type ReceivedInput } from './request-body.ts'
import { ROUTES } from './resources/index.ts'
import { type Caller, type IdentifiedCaller, locateField, type Method, type Route } from './route.ts'

export interface ApiOptions {
  /** Its role has to be a member of `leasehold_api`, or a superuser. */
  readonly db: Database
  /** Default `leasehold`. */
  readonly schema?: string
  /** Where the API is mounted: an empty text, or a path that begins with a slash. Default `/api/v1`. */
  readonly basePath?: string
  /**
   * Who sends a request. Default: by keys (`leasehold keys create`). Give your own to have it behind your login. It is not
   * asked about sessions of the portal (`Authorization: Bearer lhs_…`), which the API knows itself.
   */
  readonly authorize?: Authorize
  /** Who a request without a key is; give it only where nobody else can send one. Default: it is refused. */
  readonly withoutKey?: Caller
  /**
   * The address of the client, by which failed attempts are limited. Behind a proxy, read the header that it sets. Default:
   * that of the connection, where the server is one of Node.js.
   */
  readonly clientAddress?: (request: Request) => string | undefined
  /** For the secrets of endpoints, which URLs they may have, and how many a tenant may have. */
  readonly webhooks?: Omit<EndpointsOptions, 'schema'>
  /** Lease tables of your own, for `/tables`. Give the declarations of their workers, so that explanations know these. */
  readonly tables?: readonly (LeaseTable | WorkerOfOwnTable)[]
  /** How long a statement may take. Default 5,000. */
  readonly statementTimeoutMs?: number
  /** How many requests a caller may send per second, and at once. Default 50 and 200. */
  readonly requestsPerSecond?: number
  readonly burst?: number
  /** How many connections to the database a caller may use at the same time; further requests wait. Default 2. */
  readonly connectionsPerCaller?: number
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
  connectionsPerCaller: true,
  onError: true,
})

/** What routes need besides the database. */
export interface ApiContext {
  readonly schema: string
  readonly webhooks: Omit<EndpointsOptions, 'schema'>
  readonly tables: readonly LeaseTable[]
  /** The workers of these tables, as far as they are known. */
  readonly workers: readonly WorkerOfOwnTable[]
  readonly changes: BackgroundChanges
  readonly live: Live
  readonly history: History
  readonly roles: ActingRoles
}

export interface Api {
  /**
   * Answers a request. It never rejects.
   *
   * @param env is given to `authorize`. Servers of Node.js give `{ incoming }`, by which the address of the client is known.
   */
  fetch(request: Request, env?: object): Promise<Response>
  /**
   * Continues background changes that other processes have left, now and every minute, forgets old answers and sessions,
   * and begins the history for charts. Call it once, when the server has started.
   */
  resumeChanges(): Promise<void>
  /** Ends live updates, the history and background changes; these continue in another process, or after the next start. */
  stop(): Promise<void>
}

/** A request, and the route that it goes to. */
interface Asked {
  readonly request: Request
  readonly env: RequestEnv
  readonly route: Route
  /** The body is read once, however often it is asked for. */
  readonly receiveInput: () => Promise<ReceivedInput>
}

/** Failed attempts of one client: a few at once, then one every six seconds. */
const FAILED_ATTEMPTS = { burst: 10, perSecond: 1 / 6 }

/** Of a request that needs no key, and is read before it is limited. */
const MAX_OPEN_BODY_BYTES = 4_096

const HEADERS = { 'cache-control': 'no-store', 'x-content-type-options': 'nosniff' }

/** The HTTP API as a Fetch handler, to be mounted in a server of your own. */
export function createApi(options: ApiOptions): Api {
  refuseUnknownOptions('createApi', options, OPTIONS)
  const { db, schema = 'leasehold', basePath = '/api/v1', statementTimeoutMs = 5_000 } = options
  const { requestsPerSecond = 50, burst = 200, tables = [], webhooks = {} } = options
  const { clientAddress = () => undefined, onError = reportOnStderr, connectionsPerCaller = 2 } = options
  checkOptions({ basePath, statementTimeoutMs, requestsPerSecond, burst, connectionsPerCaller })
  const roles = findActingRoles(db, schema)
  const { authorize, withoutKey } = options
  const identify = identifyBy({ db, schema, roles, statementTimeoutMs, authorize, withoutKey })
  const requests = new RateLimiter({ burst, perSecond: requestsPerSecond }, systemClock)
  // For themselves: each wrong key has a bucket there, and would displace that of a caller.
  const openRequests = new RateLimiter({ burst, perSecond: requestsPerSecond }, systemClock)
  const failures = new RateLimiter(FAILED_ATTEMPTS, systemClock)
  const isKnown = knownTokens(
    {
      query: async (statement) => (await actingForServer(db, roles, statementTimeoutMs)).query(statement),
    },
    schema,
  )
  const connections = new ConnectionLimiter({ atOnce: connectionsPerCaller, waitMs: statementTimeoutMs })
  const { prefix } = roles
  const live = new Live({ db, schema, prefix, statementTimeoutMs, onError })
  const changes = new BackgroundChanges({ db, schema, roles, onError })
  const own = ownTables(tables)
  const history = new History({
    db,
    schema,
    tables: own.tables,
    prefix,
    statementTimeoutMs,
    onError,
    onPoint: (point) => live.sendPoint(point),
  })
  const context: ApiContext = { schema, webhooks, ...own, changes, live, history, roles }
  const execution = { db, connections, roles, statementTimeoutMs, context }

  async function handle(asked: Asked): Promise<Response> {
    const address = clientAddress(asked.request) ?? remoteAddress(asked.env) ?? 'unknown'
    // A request without a key guesses nothing.
    const isGuess = asked.route.isOpen || carriesKey(asked.request)
    // Before it is known whether the key is right: many can be sent at the same time.
    const allowance = isGuess ? failures.take(address) : failures.look(address)
    let isWrong = false
    try {
      if (isGuess && !allowance.allowed) await refuseUnknown(asked)
      const caller = asked.route.isOpen ? await sender(asked, address) : await identify(asked)
      return await answerTo(asked, caller)
    } catch (error) {
      isWrong = isLeaseholdError(error, 'KEY_INVALID')
      throw isWrong && !allowance.allowed ? new TooMany('attempts with a wrong key', allowance) : error
    } finally {
      if (isGuess && allowance.allowed && !isWrong) failures.giveBack(address)
    }
  }

  /** Behind a proxy all clients have one address: wrong keys must not lock out the right ones, nor reach the database. */
  async function refuseUnknown({ request, route, receiveInput }: Asked): Promise<void> {
    // Who is right, a login of the user's own knows.
    if (authorize !== undefined && !route.isOpen && !isFromPortal(request)) return
    const token = route.isOpen ? route.tokenIn(request, await receiveInput()) : tokenOf(request)
    if (token !== undefined && !(await isKnown(token)))
      throw new LeaseholdError('KEY_INVALID', 'The request has no valid key.')
  }

  async function sender({ request, route, receiveInput }: Asked, address: string): Promise<IdentifiedCaller> {
    return nobody(route.tokenIn(request, await receiveInput()), address)
  }

  async function answerTo(asked: Asked, caller: IdentifiedCaller): Promise<Response> {
    const { request, route } = asked
    const allowance = (route.isOpen ? openRequests : requests).take(caller.principal)
    const headers = new Headers({ ...HEADERS, ...rateLimitHeaders(allowance) })
    try {
      if (!allowance.allowed) throw new TooMany('requests', allowance)
      refuseOtherOrigins(request)
      refuseUnlessPermitted(route, caller)
      const isCurrent = async (): Promise<boolean> => isStillPermitted(identify, asked, caller)
      const accepted = { ...asked, caller, headers, isCurrent }
      const { status, answer, replayed } = await execute(execution, accepted)
      if (replayed) headers.set('idempotency-replayed', 'true')
      return respond(status, answer, headers)
    } catch (error) {
      // `handle` counts it.
      if (isLeaseholdError(error, 'KEY_INVALID')) throw error
      return failed(error, Object.fromEntries(headers), route)
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
    app.on(route.method, pathOf(route.path), async (c) => {
      const request = c.req.raw
      const maxBytes = route.isOpen ? MAX_OPEN_BODY_BYTES : undefined
      let received: Promise<ReceivedInput> | undefined
      const receiveInput = async (): Promise<ReceivedInput> =>
        (received ??= receive(request, c.req.param(), maxBytes))
      return handle({ request, route, env: c.env, receiveInput })
    })
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
    async resumeChanges() {
      void history.start()
      await changes.resumeLeft()
    },
    async stop() {
      live.stop()
      await history.stop()
      await changes.stop()
    },
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

interface CheckedOptions {
  readonly basePath: string
  readonly statementTimeoutMs: number
  readonly requestsPerSecond: number
  readonly burst: number
  readonly connectionsPerCaller: number
}

function checkOptions(options: CheckedOptions): void {
  const { basePath, statementTimeoutMs, requestsPerSecond, burst, connectionsPerCaller } = options
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
    ...(Number.isInteger(connectionsPerCaller) && connectionsPerCaller >= 1
      ? []
      : [`connectionsPerCaller is ${inspect(connectionsPerCaller)}; give a whole number above 0`]),
  ]
  if (problems.length === 0) return
  throw new LeaseholdError('SETTING_INVALID', `The options of createApi: ${problems.join('; ')}.`, {
    remedy: 'Correct the options named.',
  })
}

function notFound(method: string, path: string): LeaseholdError {
  return new LeaseholdError('ROUTE_NOT_FOUND', `There is no ${method} ${path}.`, {
    remedy: 'openapi.json, at the base path, lists what there is.',
  })
}

/** Each table once: several workers may process the same one. */
function ownTables(
  given: readonly (LeaseTable | WorkerOfOwnTable)[],
): Pick<ApiContext, 'tables' | 'workers'> {
  const workers = given.filter((each) => 'table' in each)
  const tables = given.map((each) => ('table' in each ? each.table : each))
  return { tables: [...new Map(tables.map((table) => [tableName(table), table])).values()], workers }
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

function reportOnStderr(error: unknown): void {
  process.stderr.write(`${inspect(error)}\n`)
}
