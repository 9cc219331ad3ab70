/** The worker of webhooks: signs and sends deliveries, judges the responses, and stores the circuits of endpoints. */
import { inspect } from 'node:util'
import { type Clock, systemClock } from '../../clock.ts'
import { LeaseholdError } from '../../errors.ts'
import { refuseUnknownOptions } from '../../nearest.ts'
import { isUnavailable } from '../../postgres/failures.ts'
import { packageVersion } from '../../package-files.ts'
import type { HandlerContext } from '../../worker/context.ts'
import { createLoop, type HastenableLoop } from '../../worker/loop.ts'
import { type Outcome, settleAs } from '../../worker/completion/outcome.ts'
import { declaredSettings, type DeclaredSettings } from '../../worker/settings.ts'
import type { WorkDeclaration, WorkerEnvironment } from '../../worker/work-declaration.ts'
import { MAX_TIMEOUT_MS } from '../endpoints/check.ts'
import { readSecretKeys, requireSecretKeys } from '../endpoints/secrets.ts'
import type { Dial, TlsOptions } from '../network/connect.ts'
import { type NetworkPolicy, networkPolicy, type NetworkPolicyOptions } from '../network/policy.ts'
import type { Poster, PostLimits, Reply } from '../network/post.ts'
import type { Resolve } from '../network/resolve.ts'
import { validateSchedule } from '../schedule.ts'
import { TRACE_HEADERS } from '../send/fan-out.ts'
import type { SecretKeys } from '../signing/encryption.ts'
import { webhookHeaders } from '../signing/sign.ts'
import { repeatedMaintenance, type WebhookMaintenance } from '../admin/maintenance.ts'
import { type DeliveryRow, webhookTable } from '../table.ts'
import { type CircuitBreakerSettings, circuitBreakerSettings, type CircuitChange } from './circuit-breaker.ts'
import { type CachedEndpoint, EndpointCache } from './endpoint-cache.ts'
import { disableEndpoint, storeCircuit } from './endpoint-cache-sql.ts'
import { EndpointGroups, positionAmong } from './endpoint-groups.ts'
import { judgeResponse } from './judge-response.ts'

export interface DispatcherOptions {
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /**
   * The key that the secrets of endpoints are encrypted with. Several are separated by commas, the newest first.
   * Default: `LEASEHOLD_SECRET_KEY` of the environment.
   */
  readonly secretKey?: string
  /** Where deliveries may go. Default: https to public addresses. */
  readonly network?: NetworkPolicyOptions
  /** An egress proxy, such as http://proxy.internal:3128. It then decides where deliveries may go. */
  readonly proxy?: string
  readonly limits?: Partial<PostLimits>
  readonly tls?: TlsOptions
  /** The delays after failed attempts, in ms; there is one attempt more than delays. Default: ten in 75 hours. */
  readonly schedule?: readonly number[]
  readonly circuitBreaker?: Partial<CircuitBreakerSettings>
  /**
   * Which part of the slots the deliveries of one tenant may use, where several tenants have endpoints: above 0, at most
   * 1. An eighth of the slots is reserved for tenants with nothing in flight in any case. Default 0.5.
   */
  readonly tenantShare?: number
  readonly settings?: DeclaredSettings
  /** How long finished deliveries are retained, and when a delivery that cannot be attempted fails; `false`: forever. */
  readonly retention?: WebhookMaintenance | false
  /** For tests: how names are resolved, and how connections are made. */
  readonly resolve?: Resolve
  readonly dial?: Dial
  readonly clock?: Clock
  readonly random?: () => number
}

// The compiler sees that these are all names.
const OPTION_NAMES = Object.keys({
  schema: true,
  secretKey: true,
  network: true,
  proxy: true,
  limits: true,
  tls: true,
  schedule: true,
  circuitBreaker: true,
  tenantShare: true,
  settings: true,
  retention: true,
  resolve: true,
  dial: true,
  clock: true,
  random: true,
} satisfies Record<keyof DispatcherOptions, true>)

/** The name of the dispatcher: its role, the name of its settings, and what wakes it. */
export const WEBHOOKS = 'webhooks'

/**
 * Deliveries wait for other people's servers: leases are long, slots are many and cheap, and nothing is claimed before
 * there is a slot for it.
 */
const SETTINGS = { profile: 'externalCalls', concurrency: 256, prefetch: 0, claimLoops: 2 } as const
const DEFAULT_TENANT_SHARE = 0.5
const REFRESH_INTERVAL_MS = 5_000
/** Every event that is sent wakes the dispatchers; they do not read the endpoints more often than this. */
const MIN_REFRESH_INTERVAL_MS = 1_000
/** How long a new dispatcher waits for all others to have read the registry and reduced their parts of the limits. */
const JOIN_DELAY_MS = REFRESH_INTERVAL_MS + 1_000
/** How long a delivery is postponed whose endpoint was disabled or deleted after the claim. */
const POSTPONE_MS = 5_000
const MAINTENANCE_INTERVAL_MS = 60_000
const GONE_REASON = 'answered with HTTP 410 Gone'

/** The worker of webhooks: give it to `startRuntime`, or list it under `workers` in `leasehold.config`. */
export function dispatcher(options: DispatcherOptions = {}): WorkDeclaration<DeliveryRow> {
  refuseUnknownOptions('dispatcher', options, OPTION_NAMES)
  const { schema = 'leasehold', clock = systemClock, retention = {} } = options
  const schedule = validateSchedule(options.schedule)
  const circuitBreaker = circuitBreakerSettings(options.circuitBreaker)
  const running = new RunningDispatcher({ ...options, schema, clock, schedule, circuitBreaker })
  return {
    name: WEBHOOKS,
    table: webhookTable({ schema, schedule }),
    wake: true,
    handle: async (context) => running.deliver(context),
    describe: ({ event_type: eventType, endpoint_id: endpoint }) => ({ eventType, endpoint }),
    groups: running.groups,
    settings: declaredSettings(SETTINGS, options.settings),
    bucket: 'all',
    ...(retention === false
      ? {}
      : {
          maintenance: {
            everyMs: MAINTENANCE_INTERVAL_MS,
            settings: retention,
            run: repeatedMaintenance({ ...retention, schema }),
            deadCounts: ['overdue', 'endpointDeleted'],
          },
        }),
    open: async (environment) => running.open(environment),
    close: async () => running.close(),
  }
}

interface RunningDispatcherOptions extends DispatcherOptions {
  readonly schema: string
  readonly clock: Clock
  readonly schedule: readonly number[]
  readonly circuitBreaker: CircuitBreakerSettings
}

class RunningDispatcher {
  readonly groups: EndpointGroups
  readonly #options: RunningDispatcherOptions
  readonly #policy: NetworkPolicy
  readonly #keys: SecretKeys | undefined
  readonly #userAgent = `leasehold/${packageVersion()}`
  #opened:
    | { readonly poster: Poster; readonly endpoints: EndpointCache; readonly environment: WorkerEnvironment }
    | undefined
  #refreshLoop: HastenableLoop | undefined
  /** Endpoints may have changed since they were last read. */
  #isStale = false
  #refreshedAt = Number.NEGATIVE_INFINITY
  #refreshTimer: NodeJS.Timeout | undefined
  /** Writes to endpoints that no delivery waits for. */
  #pendingWrites = new Set<Promise<void>>()

  constructor(options: RunningDispatcherOptions) {
    this.#options = options
    this.#policy = networkPolicy(options.network)
    this.#keys = readSecretKeys(options.secretKey)
    this.groups = new EndpointGroups(
      options.clock,
      options.circuitBreaker,
      validateTenantShare(options.tenantShare),
      () => this.#refreshSoon(),
    )
  }

  async open(environment: WorkerEnvironment): Promise<void> {
    const { schema, clock, limits, proxy, tls, resolve, dial } = this.#options
    const endpoints = new EndpointCache({
      db: environment.db,
      schema,
      role: WEBHOOKS,
      // A dispatcher without endpoints needs no key.
      keys: () => requireSecretKeys(this.#keys),
      clock,
      onUnusable: (id, error) => this.#reportTrouble(`using webhook endpoint ${id}`, error),
    })
    // A role that may not read secrets is refused now, and not when the first endpoint is created.
    await endpoints.checkPermission()
    // Loaded by those who deliver: undici takes as much memory as the rest of a worker.
    const { createPoster } = await import('../network/post.ts')
    const poster = createPoster({
      policy: this.#policy,
      // Each endpoint has its own timeout, which the default for the head must not cut short.
      limits: { headTimeoutMs: MAX_TIMEOUT_MS, ...limits },
      ...(proxy === undefined ? {} : { proxy }),
      ...(tls === undefined ? {} : { tls }),
      ...(resolve === undefined ? {} : { resolve }),
      ...(dial === undefined ? {} : { dial }),
      clock,
    })
    this.#opened = { poster, endpoints, environment }
    const joinsAt = clock.monotonicNow() + JOIN_DELAY_MS
    this.#refreshLoop = createLoop({
      name: 'webhook endpoints',
      work: async () => this.#refresh(endpoints, environment, joinsAt),
      pauseMs: () => (this.#isStale ? this.#msUntilRefresh() : this.#refreshIntervalMs(joinsAt)),
      onError: (error) => this.#reportTrouble('reading the webhook endpoints', error),
    })
    this.#refreshLoop.start()
  }

  async close(): Promise<void> {
    clearTimeout(this.#refreshTimer)
    await this.#refreshLoop?.stop()
    await Promise.all(this.#pendingWrites)
    await this.#opened?.poster.close()
  }

  /** The handler: one attempt at one delivery. The worker settles the outcome under the lease's token. */
  async deliver(context: HandlerContext<DeliveryRow>): Promise<Outcome> {
    const { row, attempt } = context
    const { schedule, random = Math.random } = this.#options
    const endpoint = await this.#currentEndpoint(row.endpoint_id)
    // The endpoint was disabled or deleted after the claim, or cannot be read at the moment.
    if (this.#opened === undefined || endpoint === undefined)
      return settleAs('postponed', { delay_ms: POSTPONE_MS })
    const reply = await this.#post(this.#opened.poster, endpoint, context)
    const judgement = judgeResponse(reply, { attempt, schedule, random, now: Date.now() })
    if (judgement.pauseMs !== undefined) this.groups.pause(endpoint.id, judgement.pauseMs)
    if (judgement.endpoint === 'disable') this.#writeInBackground(this.#disable(endpoint.id))
    else if (judgement.endpoint === 'healthy')
      this.#storeCircuit(endpoint.id, this.groups.recordSuccess(endpoint.id))
    else this.#storeCircuit(endpoint.id, this.groups.recordFailure(endpoint.id))
    return judgement.outcome
  }

  async #currentEndpoint(id: string): Promise<CachedEndpoint | undefined> {
    try {
      return await this.#opened?.endpoints.current(id)
    } catch (error) {
      // The claims report a database that is unavailable, once for all rows.
      if (!isUnavailable(error)) this.#reportTrouble(`reading webhook endpoint ${id}`, error)
      return undefined
    }
  }

  async #post(
    poster: Poster,
    endpoint: CachedEndpoint,
    { row, attempt, signal }: HandlerContext<DeliveryRow>,
  ): Promise<Reply> {
    const signed = webhookHeaders({
      id: row.event_id,
      timestampSeconds: Math.floor(Date.now() / 1_000),
      body: row.body,
      signers: endpoint.signers(this.#options.clock.monotonicNow()),
      attempt,
    })
    const headers = {
      'user-agent': this.#userAgent,
      ...endpoint.headers,
      'content-type': 'application/json',
      ...traceHeadersOf(row),
      ...signed,
    }
    const secrets = Object.values(endpoint.headers)
    return poster.post(
      endpoint.url,
      { headers, body: row.body, secrets },
      { signal, timeoutMs: endpoint.timeoutMs },
    )
  }

  #storeCircuit(id: string, change: CircuitChange | undefined): void {
    const environment = this.#opened?.environment
    if (change === undefined || environment === undefined) return
    if (change.to === 'open')
      environment.log.warn(
        { endpoint: id, failures: change.failures, forMs: change.openMs },
        'webhook circuit opened',
      )
    else environment.log.info({ endpoint: id }, 'webhook circuit closed')
    this.#writeInBackground(environment.db.query(storeCircuit(this.#options.schema, id, change)))
  }

  async #disable(id: string): Promise<void> {
    const environment = this.#opened?.environment
    if (environment === undefined) return
    const { rows } = await environment.db.query(disableEndpoint(this.#options.schema, id, GONE_REASON))
    if (rows.length > 0)
      environment.log.warn({ endpoint: id, reason: GONE_REASON }, 'webhook endpoint disabled')
    this.#refreshSoon()
  }

  /** A delivery does not wait until the state of its endpoint is stored. */
  #writeInBackground(write: Promise<unknown>): void {
    const pending = write
      .then(() => undefined)
      .catch((error: unknown) => this.#reportTrouble('storing the state of a webhook endpoint', error))
      .finally(() => this.#pendingWrites.delete(pending))
    this.#pendingWrites.add(pending)
  }

  /** Reads the endpoints and the registry, and updates the room of every endpoint. */
  async #refresh(cache: EndpointCache, environment: WorkerEnvironment, joinsAt: number): Promise<void> {
    const { clock } = this.#options
    this.#isStale = false
    this.#refreshedAt = clock.monotonicNow()
    const { endpoints, dispatchers } = await cache.refresh()
    const position = positionAmong(environment.worker, dispatchers)
    // Until their next refresh, the other dispatchers do not know of this one and use the whole limits.
    const isJoining = position.count > 1 && clock.monotonicNow() < joinsAt
    this.groups.update(isJoining ? [] : endpoints, position)
  }

  /** Called when endpoints may have changed. A refresh that is running may have been too early to see the change. */
  #refreshSoon(): void {
    if (this.#isStale) return
    this.#isStale = true
    const inMs = this.#msUntilRefresh()
    this.#refreshTimer = setTimeout(() => this.#refreshLoop?.hasten(), inMs)
  }

  #msUntilRefresh(): number {
    return Math.max(0, this.#refreshedAt + MIN_REFRESH_INTERVAL_MS - this.#options.clock.monotonicNow())
  }

  /** A dispatcher that is joining refreshes as soon as it may deliver. */
  #refreshIntervalMs(joinsAt: number): number {
    const joinsInMs = joinsAt - this.#options.clock.monotonicNow()
    return joinsInMs > 0 ? Math.min(REFRESH_INTERVAL_MS, joinsInMs) : REFRESH_INTERVAL_MS
  }

  #reportTrouble(what: string, error: unknown): void {
    const environment = this.#opened?.environment
    environment?.events.emit('trouble', { worker: environment.worker, what, error })
  }
}

function validateTenantShare(share = DEFAULT_TENANT_SHARE): number {
  if (typeof share === 'number' && share > 0 && share <= 1) return share
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The setting tenantShare of webhooks cannot be ${inspect(share)}.`,
    {
      remedy: 'Give the part of the slots that one tenant may use: above 0 and at most 1.',
    },
  )
}

/** Only the trace headers of the event are sent to strangers. */
function traceHeadersOf({ headers }: DeliveryRow): Record<string, string> {
  const trace = TRACE_HEADERS.flatMap((name) => {
    const value = headers[name]
    // A row that was written by hand may hold anything.
    return typeof value === 'string' && /^[\x20-\x7e]{1,512}$/.test(value) ? [[name, value]] : []
  })
  return Object.fromEntries(trace)
}
