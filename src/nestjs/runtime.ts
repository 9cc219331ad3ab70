/** The worker process inside a Nest application: from what a module was given to a running `Runtime`. */
import type { DiscoveryService, ModuleRef } from '@nestjs/core'
import type { InjectionToken } from '@nestjs/common'
import { LeaseholdError } from '../errors.ts'
import { logEvents } from '../observe/log.ts'
import type { OutboxOptions } from '../outbox/enqueue/enqueue.ts'
import { handlers, type HandlersOptions } from '../outbox/publishers/handlers.ts'
import { OUTBOX, relay, type RelayOptions } from '../outbox/relay.ts'
import type { OutboxRow } from '../outbox/table.ts'
import { openDatabase } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { WebhooksOptions } from '../webhooks/send/send.ts'
import { Events } from '../worker/events.ts'
import { type Runtime, type RunState, startRuntime } from '../worker/process.ts'
import type { LogSource } from '../worker/context.ts'
import type { RuntimeOptions, WorkDeclaration } from '../worker/work-declaration.ts'
import { nestLog } from './log.ts'
import { findHandlers, type FoundHandler } from './outbox-handlers.ts'

/** Returns a provider of the application, whichever module it is in. */
export type InjectProvider = <Instance>(
  token: (abstract new (...args: never[]) => Instance) | InjectionToken<Instance>,
) => Instance

type Workers = readonly WorkDeclaration<never>[]

/** The options of `startRuntime`, and what a Nest application needs besides. */
export interface LeaseholdModuleOptions extends Omit<RuntimeOptions, 'workers'> {
  /** Workers besides the relay of the `@OutboxHandler` methods; as a function, they can use providers. */
  readonly workers?: Workers | ((inject: InjectProvider) => Workers | Promise<Workers>)
  /** Whether this process runs workers. Default true; `false` for a process that only enqueues. */
  readonly start?: boolean
  /** The options of the `Outbox` that is injected, as `createOutbox` takes them. */
  readonly outbox?: Omit<OutboxOptions, 'schema'>
  /** The options of the `Webhooks` that is injected, as `createWebhooks` takes them. */
  readonly webhooks?: Omit<WebhooksOptions, 'schema'>
  /** The options of the relay that runs the `@OutboxHandler` methods. */
  readonly relay?: Omit<RelayOptions, 'publisher' | 'schema'> & HandlersOptions
}

const OPTION_NAMES = namesOf<LeaseholdModuleOptions>({
  databaseUrl: true,
  workers: true,
  schema: true,
  id: true,
  events: true,
  log: true,
  settings: true,
  reaper: true,
  reapTables: true,
  eviction: true,
  listen: true,
  listenUrl: true,
  heartbeat: true,
  presenceMs: true,
  databaseWaitMs: true,
  signal: true,
  auditRetentionMs: true,
  maxConnections: true,
  migrate: true,
  start: true,
  outbox: true,
  webhooks: true,
  relay: true,
})

/** Refuses names that no option has. Their values are checked by whatever they are given to. */
export function checkedOptions(options: LeaseholdModuleOptions): LeaseholdModuleOptions {
  refuseUnknownOptions('LeaseholdModule', options, OPTION_NAMES)
  return options
}

export interface LeaseholdRuntimeOptions {
  readonly options: LeaseholdModuleOptions
  /** Of the module; undefined: it has none. */
  readonly name: string | undefined
  readonly discovery: DiscoveryService
  readonly moduleRef: ModuleRef
}

/** The workers of one `LeaseholdModule`. The module starts and stops it. */
export class LeaseholdRuntime {
  /** Everything that the workers do, as events. */
  readonly events: Events
  readonly name: string | undefined
  readonly #given: LeaseholdRuntimeOptions
  #state: RunState = 'starting'
  #starting: Promise<Runtime | undefined> | undefined
  #runtime: Runtime | undefined
  #stopLogging: () => void = () => undefined

  constructor(given: LeaseholdRuntimeOptions) {
    this.#given = given
    this.name = given.name
    this.events = given.options.events ?? new Events()
  }

  /** The running worker process; undefined before the application has started, and with `start: false`. */
  get runtime(): Runtime | undefined {
    return this.#runtime
  }

  get state(): RunState {
    return this.#state
  }

  async start(): Promise<void> {
    // The application may be closed before it has started.
    if (this.#state !== 'starting') return
    this.#starting = this.#startNow()
    this.#runtime = await this.#starting
    // It may have been told to stop meanwhile.
    if (this.#state === 'starting') this.#state = 'running'
  }

  /** Stops claiming, waits for running handlers, and releases the rest: see `Runtime.stop`. */
  async stop(): Promise<void> {
    this.#state = 'stopping'
    // A start that failed has stopped what it had started, and was reported to whoever started it.
    const runtime = await this.#starting?.catch(() => undefined)
    await runtime?.stop()
    this.#stopLogging()
  }

  async #startNow(): Promise<Runtime | undefined> {
    const { start = true, workers, outbox, webhooks: _, relay: ofHandlers, ...options } = this.#given.options
    const modules = this.#modules()
    this.#refuseSecondOfSameName(modules)
    if (!start) {
      if (options.migrate === true) await migrateOnly(options)
      return undefined
    }
    const given = typeof workers === 'function' ? await workers(this.#inject) : (workers ?? [])
    const knownTypes = outbox?.events === undefined ? undefined : Object.keys(outbox.events)
    const found = findHandlers({
      discovery: this.#given.discovery,
      module: this.name,
      modules: modules.map(({ name }) => name),
      knownTypes,
    })
    if (found.length === 0 && given.length === 0 && options.reapTables === undefined) throw nothingToRun()
    const [first] = found
    if (first !== undefined && given.some(({ name }) => name === OUTBOX)) throw twoRelays(first)
    const all = first === undefined ? given : [relayOf(found, options.schema, ofHandlers), ...given]
    const log = options.log ?? this.#logThroughNest()
    try {
      return await startRuntime({ ...options, workers: all, events: this.events, log })
    } catch (error) {
      this.#stopLogging()
      throw error
    }
  }

  readonly #inject: InjectProvider = (token) =>
    // Of classes, Nest's types know only those that can be instantiated.
    this.#given.moduleRef.get(token as InjectionToken, { strict: false })

  #logThroughNest(): LogSource {
    const log = nestLog(this.name === undefined ? 'Leasehold' : `Leasehold:${this.name}`)
    this.#stopLogging = logEvents(this.events, log)
    return log
  }

  /** Of every `LeaseholdModule` of the application. */
  #modules(): readonly LeaseholdRuntime[] {
    const all = this.#given.discovery.getProviders().map(({ instance }): unknown => instance)
    return [...new Set(all.filter((one) => one instanceof LeaseholdRuntime))]
  }

  /** Both would find the same handlers, and it would be left to chance which of them is injected. */
  #refuseSecondOfSameName(modules: readonly LeaseholdRuntime[]): void {
    const { name } = this.#given
    if (modules.filter((one) => one.name === name).length <= 1) return
    throw new LeaseholdError(
      'SETTING_INVALID',
      `LeaseholdModule is imported twice ${name === undefined ? 'without a name' : `with the name '${name}'`}.`,
      { remedy: 'Import it once, in the root module, or give the second one a `name`.' },
    )
  }
}

/** One relay runs all of them. */
function relayOf(
  found: readonly FoundHandler[],
  schema: string | undefined,
  { otherwise, maxBatch, ...options }: NonNullable<LeaseholdModuleOptions['relay']> = {},
): WorkDeclaration<OutboxRow> {
  const byType = Object.fromEntries(found.map(({ type, handle }) => [type, handle]))
  const publisher = handlers(byType, {
    ...(otherwise === undefined ? {} : { otherwise }),
    ...(maxBatch === undefined ? {} : { maxBatch }),
  })
  return relay({ ...options, publisher, ...(schema === undefined ? {} : { schema }) })
}

async function migrateOnly({
  databaseUrl,
  schema,
}: Pick<RuntimeOptions, 'databaseUrl' | 'schema'>): Promise<void> {
  const db = openDatabase({ url: databaseUrl, maxConnections: 1 })
  try {
    await migrate(db, schema === undefined ? {} : { schema })
  } finally {
    await db.close()
  }
}

function nothingToRun(): LeaseholdError {
  return new LeaseholdError(
    'SETTING_INVALID',
    'LeaseholdModule has nothing to run: no provider of the application has a method with @OutboxHandler, and `workers` is empty.',
    {
      remedy:
        'List the class with the handlers under `providers` of a module, give `workers`, or give `start: false` for a process that only enqueues.',
    },
  )
}

function twoRelays({ place }: FoundHandler): LeaseholdError {
  return new LeaseholdError(
    'SETTING_INVALID',
    `${place} is an @OutboxHandler, which the module runs by a relay of its own, and \`workers\` has another relay.`,
    {
      remedy:
        'Remove the relay from `workers` and give its options as `relay`, or remove the decorators: an event is handled by one relay.',
    },
  )
}
