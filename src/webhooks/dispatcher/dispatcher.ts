import { type Clock, systemClock } from '../../clock.ts'
import { LEASE_MS } from '../../lease/timing.ts'
import type { HandlerContext } from '../../worker/context.ts'
import { createLoop, type HastenableLoop } from '../../worker/loop.ts'
import { type Outcome, settleAs } from '../../worker/outcome.ts'
import type { WorkerSettings } from '../../worker/settings.ts'
import type { Surroundings, WorkDeclaration } from '../../worker/work-declaration.ts'
import { packageVersion } from '../../version.ts'
import {
  createPoster,
  type Dial,
  networkPolicy,
  type NetworkPolicyOptions,
  type Poster,
  type PostLimits,
  type Reply,
  type Resolve,
  type TlsOptions,
} from '../network/index.ts'
import { keysOf, LONGEST_TIMEOUT_MS, neededKeys } from '../endpoints/index.ts'
import { webhookUpkeep, type WebhookRetention } from '../admin/upkeep.ts'
import { type SecretKeys, webhookHeaders } from '../signing/index.ts'
import { usableSchedule } from '../schedule.ts'
import { type DeliveryRow, webhookTable } from '../table.ts'
import { type BreakerChange, type BreakerSettings, usableBreaker } from './breaker.ts'
import { type Endpoint, Directory } from './directory.ts'
import { circuit, disableGone } from './directory-sql.ts'
import { EndpointGroups } from './endpoint-groups.ts'
import { judge } from './verdict.ts'

export interface DispatcherOptions {
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /**
   * What the secrets of endpoints are encrypted with; several, separated by commas, the newest first.
   * Default: `LEASEHOLD_SECRET_KEY` of the environment.
   */
  readonly secretKey?: string
  /** Where deliveries may go. Default: https to public addresses. */
  readonly network?: NetworkPolicyOptions
  /** An egress proxy, such as http://proxy.internal:3128. It then decides where deliveries may go. */
  readonly proxy?: string
  readonly limits?: Partial<PostLimits>
  readonly tls?: TlsOptions
  /** The delays after failed attempts, in ms; after one more attempt a delivery has failed. Default: ten in 75 hours. */
  readonly schedule?: readonly number[]
  readonly breaker?: Partial<BreakerSettings>
  readonly settings?: Partial<WorkerSettings>
  /** How long finished deliveries are retained, and when one that nobody attempts has failed; `false`: for ever. */
  readonly retention?: WebhookRetention | false
  readonly bucket?: number
  /** For tests: whom names belong to, and how connections are made. */
  readonly resolve?: Resolve
  readonly dial?: Dial
  readonly clock?: Clock
  readonly random?: () => number
}

/** The name under which the dispatcher is started, woken and set. */
export const WEBHOOKS = 'webhooks'

/**
 * Deliveries wait for other people's servers: leases are long, slots are many and cheap, and nothing is claimed
 * before there is a slot for it.
 */
const SETTINGS = { leaseMs: LEASE_MS.external, concurrency: 256, prefetch: 0, claimLoops: 2 } as const
const SURVEY_EVERY_MS = 5_000
/** After so long every other dispatcher knows of this one. */
const KNOWN_WITHIN_MS = SURVEY_EVERY_MS + 1_000
/** Everything that is sent wakes a dispatcher; the endpoints are not read more often than this. */
const SURVEY_PAUSE_MS = 1_000
const POSTPONED_MS = 5_000
const UPKEEP_EVERY_MS = 60_000

/** The worker of the webhooks: hand it to `startRuntime`, or list it under `workers` in `leasehold.config`. */
export function dispatcher(options: DispatcherOptions = {}): WorkDeclaration<DeliveryRow> {
  const { schema = 'leasehold', clock = systemClock, bucket, retention = {} } = options
  const schedule = usableSchedule(options.schedule)
  const work = new Dispatch({ ...options, schema, clock, schedule, breaker: usableBreaker(options.breaker) })
  return {
    name: WEBHOOKS,
    table: webhookTable({ schema, schedule }),
    wake: true,
    handle: async (context) => work.deliver(context),
    groups: work.groups,
    settings: { ...SETTINGS, ...options.settings },
    ...(bucket === undefined ? {} : { bucket }),
    ...(retention === false
      ? {}
      : {
          upkeep: {
            everyMs: UPKEEP_EVERY_MS,
            run: async (db, stop) => webhookUpkeep(db, { ...retention, schema }, stop),
          },
        }),
    open: async (surroundings) => work.open(surroundings),
    close: async () => work.close(),
  }
}

interface DispatchOptions extends DispatcherOptions {
  readonly schema: string
  readonly clock: Clock
  readonly schedule: readonly number[]
  readonly breaker: BreakerSettings
}

/** What a running dispatcher has at hand. */
class Dispatch {
  readonly groups: EndpointGroups
  readonly #options: DispatchOptions
  readonly #policy: ReturnType<typeof networkPolicy>
  readonly #keys: SecretKeys | undefined
  readonly #userAgent = `leasehold/${packageVersion()}`
  #open: { readonly poster: Poster; readonly directory: Directory; readonly around: Surroundings } | undefined
  #survey: HastenableLoop | undefined
  #stale = false
  #surveying = false
  #surveyedAt = Number.NEGATIVE_INFINITY
  #soon: NodeJS.Timeout | undefined
  #tellings = new Set<Promise<void>>()

  constructor(options: DispatchOptions) {
    this.#options = options
    this.#policy = networkPolicy(options.network)
    this.#keys = keysOf(options.secretKey)
    this.groups = new EndpointGroups(options.clock, options.breaker, () => this.#surveySoon())
  }

  async open(around: Surroundings): Promise<void> {
    const { schema, clock, limits, proxy, tls, resolve, dial } = this.#options
    const poster = createPoster({
      policy: this.#policy,
      // Each endpoint says how long it may take; nothing cuts that short.
      limits: { headTimeoutMs: LONGEST_TIMEOUT_MS, ...limits },
      ...(proxy === undefined ? {} : { proxy }),
      ...(tls === undefined ? {} : { tls }),
      ...(resolve === undefined ? {} : { resolve }),
      ...(dial === undefined ? {} : { dial }),
      clock,
    })
    const directory = new Directory({
      db: around.db,
      schema,
      role: WEBHOOKS,
      worker: around.worker,
      // A dispatcher without endpoints needs no key.
      keys: () => neededKeys(this.#keys),
      clock,
      onUnusable: (id, error) => this.#trouble(`using webhook endpoint ${id}`, error),
    })
    const openedAt = clock.monotonicNow()
    this.#open = { poster, directory, around }
    this.#survey = createLoop({
      name: 'webhook endpoints',
      work: async () => {
        this.#stale = false
        this.#surveying = true
        this.#surveyedAt = clock.monotonicNow()
        const { endpoints, share } = await directory.read()
        // Others take all there is until their next survey has shown them that they are not alone.
        const joins = share.of > 1 && clock.monotonicNow() < openedAt + KNOWN_WITHIN_MS
        this.groups.update(joins ? [] : endpoints, share)
        this.#surveying = false
        this.groups.resume()
      },
      pauseMs: () => (this.#stale ? this.#surveyIn() : Math.min(SURVEY_EVERY_MS, this.#joinsIn(openedAt))),
      onError: (error) => {
        this.#surveying = false
        this.groups.resume()
        this.#trouble('reading the webhook endpoints', error)
      },
    })
    this.#survey.start()
  }

  async close(): Promise<void> {
    clearTimeout(this.#soon)
    await this.#survey?.stop()
    await Promise.all(this.#tellings)
    await this.#open?.poster.close()
  }

  async deliver(context: HandlerContext<DeliveryRow>): Promise<Outcome> {
    const { row, attempt } = context
    const { schedule, random = Math.random } = this.#options
    const endpoint = this.#open?.directory.get(row.endpoint_id)
    // Disabled, or deleted, since it was claimed.
    if (this.#open === undefined || endpoint === undefined)
      return settleAs('postponed', { delay_ms: POSTPONED_MS })
    const reply = await this.#attempt(this.#open.poster, endpoint, context)
    const judged = judge(reply, { attempt, schedule, random, now: Date.now() })
    if (judged.restMs !== undefined) this.groups.rest(endpoint.id, judged.restMs)
    if (judged.endpoint === 'gone') this.#tell(this.#disable(endpoint.id))
    else
      this.#learn(
        endpoint.id,
        judged.endpoint === 'well' ? this.groups.succeeded(endpoint.id) : this.groups.failed(endpoint.id),
      )
    return judged.outcome
  }

  async #attempt(
    poster: Poster,
    endpoint: Endpoint,
    { row, attempt, signal }: HandlerContext<DeliveryRow>,
  ): Promise<Reply> {
    const { clock } = this.#options
    const signed = webhookHeaders({
      id: row.event_id,
      timestampSeconds: Math.floor(Date.now() / 1_000),
      body: row.body,
      signers: endpoint.signers(clock.monotonicNow()),
      attempt,
    })
    const headers = {
      'user-agent': this.#userAgent,
      ...endpoint.headers,
      'content-type': 'application/json',
      ...traceOf(row),
      ...signed,
    }
    return poster.post(endpoint.url, { headers, body: row.body }, { signal, timeoutMs: endpoint.timeoutMs })
  }

  #learn(id: string, change: BreakerChange | undefined): void {
    if (change === undefined) return
    const around = this.#open?.around
    if (around === undefined) return
    if (change.circuit === 'opened')
      around.log.warn(
        { endpoint: id, failures: change.failures, forMs: change.forMs },
        'webhook circuit opened',
      )
    else around.log.info({ endpoint: id }, 'webhook circuit closed')
    this.#tell(around.db.query(circuit(this.#options.schema, id, change)))
  }

  async #disable(id: string): Promise<void> {
    const around = this.#open?.around
    if (around === undefined) return
    const reason = 'answered with HTTP 410 Gone'
    const { rows } = await around.db.query(disableGone(this.#options.schema, id, reason))
    if (rows.length > 0) around.log.warn({ endpoint: id, reason }, 'webhook endpoint disabled')
    this.#surveySoon()
  }

  /** Endpoints may have changed. A survey that is under way may have been too early to see it. */
  #surveySoon(): void {
    if (this.#stale) return
    this.#stale = true
    const inMs = this.#surveyIn()
    // What is sent after a secret was rotated is signed with both, if there is time to read it.
    if (inMs === 0 && !this.#surveying) this.groups.hold()
    this.#soon = setTimeout(() => this.#survey?.hasten(), inMs)
  }

  /** When it is time for the first survey that counts. */
  #joinsIn(openedAt: number): number {
    const left = openedAt + KNOWN_WITHIN_MS - this.#options.clock.monotonicNow()
    return left > 0 ? left : Number.POSITIVE_INFINITY
  }

  #surveyIn(): number {
    return Math.max(0, this.#surveyedAt + SURVEY_PAUSE_MS - this.#options.clock.monotonicNow())
  }

  /** The delivery need not wait for what the database is told of the endpoint. */
  #tell(telling: Promise<unknown>): void {
    const told = telling
      .then(() => undefined)
      .catch((error: unknown) => this.#trouble('writing down the state of a webhook endpoint', error))
      .finally(() => this.#tellings.delete(told))
    this.#tellings.add(told)
  }

  #trouble(what: string, error: unknown): void {
    const around = this.#open?.around
    around?.events.emit('trouble', { worker: around.worker, what, error })
  }
}

/** Of the event's own headers only the trace goes out to strangers. */
function traceOf({ headers }: DeliveryRow): Record<string, string> {
  const trace = ['traceparent', 'tracestate'].flatMap((name) => {
    const value = headers[name]
    // A row that was written by hand may hold anything.
    return typeof value === 'string' && /^[\x20-\x7e]{1,512}$/.test(value) ? [[name, value]] : []
  })
  return Object.fromEntries(trace)
}
