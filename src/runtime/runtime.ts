import { type Clock, systemClock } from '../clock.ts'
import { LeaseholdError } from '../errors.ts'
import { fitTable } from '../lease/fit.ts'
import { leaseStore, type LeaseStore } from '../lease/store.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { within } from '../postgres/deadline.ts'
import { migrate } from '../postgres/migrate.ts'
import { retryPolicy, type RetryPolicy } from './back-off.ts'
import { type LogSource } from './context.ts'
import { Events } from './events.ts'
import { HeldRows } from './held-rows.ts'
import { startLifeline, type LifelineLink } from './lifeline-link.ts'
import { type FromLifeline, type RowToRenew } from './lifeline-messages.ts'
import { type Limits } from './limits.ts'
import { readSettings } from './live-settings.ts'
import { createLoop, type Loop } from './loop.ts'
import { createReaper } from './reaper.ts'
import { describeWorker } from './registry.ts'
import { columnsOf } from './rows-to-renew.ts'
import { createSinkProbe, type SinkProbe } from './sink-probe.ts'
import { workerSettings, type WorkerSettings } from './settings.ts'
import { Worker, type Handler } from './worker.ts'

/** One table to be worked off, and by what. */
export interface WorkDeclaration<Row extends object = Record<string, unknown>> {
  /** The role; also the name of its row in the `settings` table, and what `leasehold.wake(name)` wakes. */
  readonly name: string
  readonly table: LeaseTable
  readonly handle: Handler<Row>
  readonly settings?: Partial<WorkerSettings>
  readonly retry?: Partial<RetryPolicy>
  readonly limits?: Limits<Row>
  /** Asked now and then whether what the handler sends to has room; claiming pauses while it has not. */
  readonly probe?: SinkProbe
  /** Its producers call `leasehold.wake(name)`. */
  readonly wake?: boolean
  readonly bucket?: number
}

export interface RuntimeOptions {
  readonly databaseUrl: string
  readonly workers?: readonly WorkDeclaration<never>[]
  readonly schema?: string
  /** Unique; made from host, process and chance unless given (RULE-020-032). */
  readonly id?: string
  readonly events?: Events
  readonly log?: LogSource
  /** For all workers of this process; each worker's own come first. */
  readonly settings?: Partial<WorkerSettings>
  /** Take back expired leases of these tables. Default true; some process must (RULE-020-020). */
  readonly reaper?: boolean
  /** What is to be reaped besides the tables of `workers`: a process may reap what others work on. */
  readonly reapTables?: readonly Pick<WorkDeclaration<never>, 'table' | 'bucket'>[]
  /** Take back the leases of workers whose session is gone. Default true. */
  readonly eviction?: boolean
  /** LISTEN for wake-ups and settings. Default true; switch it off behind a transaction-mode pooler. */
  readonly listen?: boolean
  /** Where leases are renewed. Default 'thread': a handler that blocks the event loop does not starve it. */
  readonly lifeline?: 'thread' | 'inline'
  readonly presenceMs?: number
  /** The most connections of the pool; two more are the lifeline's (RULE-020-041). Default 10. */
  readonly maxConnections?: number
  readonly migrate?: boolean
}

const NEEDED_OUTCOMES = ['done', 'retry', 'dead'] as const
const PRESENCE_MS = 5_000
const LONGEST_INTRODUCTION_MS = 3_000
const SETTINGS_POLL_MS = 1_000
const SILENT: LogSource = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => SILENT,
}

interface Served {
  readonly declaration: WorkDeclaration
  readonly worker: Worker
}

/** A worker process's inside: its workers, their lifeline, the reaper, the settings they follow. */
export class Runtime {
  readonly id: string
  readonly events: Events
  readonly #options: RuntimeOptions
  readonly #db: Database
  readonly #schema: string
  readonly #served = new Map<string, Served>()
  readonly #loops: Loop[] = []
  #link: LifelineLink | undefined
  #listening = false
  #whenKnown: () => void = () => undefined
  #stopped: Promise<{ readonly clean: boolean }> | undefined

  constructor(options: RuntimeOptions, id: string) {
    this.#options = options
    this.id = id
    this.events = options.events ?? new Events()
    this.#schema = options.schema ?? 'leasehold'
    this.#db = openDatabase({
      url: options.databaseUrl,
      maxConnections: options.maxConnections ?? 10,
      applicationName: `leasehold worker ${id}`.slice(0, 63),
    })
  }

  get inFlight(): number {
    return [...this.#served.values()].reduce((sum, { worker }) => sum + worker.inFlight, 0)
  }

  /** Rows can be processed: the database side of the lifeline is up. */
  get listening(): boolean {
    return this.#listening
  }

  worker(name: string): Worker {
    const served = this.#served.get(name)
    if (served !== undefined) return served.worker
    throw new TypeError(
      `there is no worker ${name}: there are ${[...this.#served.keys()].join(', ') || 'none'}`,
    )
  }

  /** Changes the settings of one worker of this process, whole or not at all. */
  change(name: string, patch: Partial<WorkerSettings>): WorkerSettings {
    const settings = workerSettings({ ...this.worker(name).settings, ...patch })
    this.#apply(name, settings)
    return settings
  }

  async start(roles: readonly string[]): Promise<void> {
    const { workers = [], migrate: migrating = true } = this.#options
    if (migrating) await migrate(this.#db, { schema: this.#schema })
    const shapes = new Map<string, Awaited<ReturnType<typeof fitTable>>>()
    for (const { name, table } of workers) {
      refuseUnsettleable(table)
      if (shapes.has(name))
        throw new LeaseholdError('SETTING_INVALID', `There are two workers named ${name}.`)
      shapes.set(name, await fitTable(this.#db, table))
    }
    this.#link = startLifeline({
      config: {
        databaseUrl: this.#options.databaseUrl,
        schema: this.#schema,
        worker: describeWorker(roles, { id: this.id }),
        listen: this.#options.listen ?? true,
        presenceMs: this.#options.presenceMs ?? PRESENCE_MS,
      },
      mode: this.#options.lifeline ?? 'thread',
      onMessage: (message) => this.#heard(message),
    })
    // A worker that dies before the others know of it is missed only when its leases end.
    await this.#known()
    for (const declaration of workers) {
      const shape = shapes.get(declaration.name)
      // What a worker's rows are is its handler's business alone; here they are only passed on.
      if (shape !== undefined) await this.#serve(declaration as WorkDeclaration, shape, this.#link)
    }
    await this.#openReapedTables()
    this.events.on('reaped', ({ table }) => this.#of(table)?.worker.wake())
    this.#startLoops()
    this.events.emit('workerStarted', { worker: this.id, roles })
  }

  /** Resolves once this worker is in the registry, or it is clear that this takes longer. */
  async #known(): Promise<void> {
    const known = new Promise<void>((resolve) => {
      this.#whenKnown = resolve
    })
    await within(LONGEST_INTRODUCTION_MS, known)
  }

  /** Workers first, then what kept them alive. Not clean: rows were left to the reaper. */
  async stop(): Promise<{ readonly clean: boolean }> {
    this.#stopped ??= this.#stopNow()
    return this.#stopped
  }

  async #stopNow(): Promise<{ readonly clean: boolean }> {
    const served = [...this.#served.values()]
    const stopped = await Promise.all(served.map(async ({ worker }) => worker.stop()))
    await Promise.all(this.#loops.map(async (loop) => loop.stop()))
    await this.#link?.stop()
    await this.#db.close()
    const clean = stopped.every((one) => one.clean)
    this.events.emit('workerStopped', { worker: this.id, clean })
    return { clean }
  }

  async #serve(
    declaration: WorkDeclaration,
    shape: Awaited<ReturnType<typeof fitTable>>,
    link: LifelineLink,
  ): Promise<void> {
    const { name, table, bucket = 0 } = declaration
    const store = leaseStore(this.#db, table, shape, { owner: this.id, bucket })
    const held = new HeldRows()
    const settings = await this.#settingsOf(declaration)
    const qualified = tableName(table)
    link.post({ type: 'serve', table, shape, bucket, held: held.buffer, timing: settings })
    const worker = new Worker({
      name,
      store,
      handle: declaration.handle,
      settings,
      retry: retryPolicy(declaration.retry),
      limits: declaration.limits,
      events: this.events,
      log: this.#options.log ?? SILENT,
      clock: systemClock,
      random: Math.random,
      held,
      hold: (rows: readonly RowToRenew[]) =>
        link.post({ type: 'hold', table: qualified, rows: columnsOf(rows) }),
      isWoken: () => declaration.wake === true && this.#listening,
    })
    this.#served.set(name, { declaration, worker })
    worker.start()
    if (declaration.probe !== undefined) this.#loops.push(createSinkProbe(declaration.probe, worker))
    this.#stores.push(store)
  }

  async #openReapedTables(): Promise<void> {
    for (const { table, bucket = 0 } of this.#options.reapTables ?? []) {
      const served = [...this.#served.values()].some(
        ({ declaration }) => declaration.table === table && (declaration.bucket ?? 0) === bucket,
      )
      if (!served)
        this.#stores.push(
          leaseStore(this.#db, table, await fitTable(this.#db, table), { owner: this.id, bucket }),
        )
    }
  }

  readonly #stores: LeaseStore[] = []

  #startLoops(): void {
    const { reaper = true, eviction = true, settings } = this.#options
    if (reaper) {
      const intervals = (): number[] =>
        [...this.#served.values()].map(({ worker }) => worker.settings.reaperIntervalMs)
      this.#loops.push(
        createReaper({
          db: this.#db,
          schema: this.#schema,
          worker: this.id,
          stores: this.#stores,
          events: this.events,
          settings: () => ({
            reaperIntervalMs: Math.min(workerSettings(settings).reaperIntervalMs, ...intervals()),
          }),
          ...(eviction ? {} : { eviction: false }),
        }),
      )
    }
    this.#loops.push(
      createLoop({
        name: 'in flight',
        work: async () => {
          this.#link?.post({ type: 'inFlight', count: this.inFlight })
          return Promise.resolve()
        },
        pauseMs: () => this.#options.presenceMs ?? PRESENCE_MS,
        onError: (error) => this.#trouble('counting what is in flight', error),
      }),
      createLoop({
        name: 'settings',
        work: async () => this.#followSettings(),
        pauseMs: () => SETTINGS_POLL_MS,
        onError: (error) => this.#trouble('reading the settings', error),
      }),
    )
    for (const loop of this.#loops) loop.start()
  }

  /** Without LISTEN nobody tells of a change, so it is looked for. */
  async #followSettings(): Promise<void> {
    if (this.#listening) return
    for (const name of this.#served.keys()) await this.#readSettings(name)
  }

  async #settingsOf({ name, settings }: WorkDeclaration): Promise<WorkerSettings> {
    const stored = await readSettings(this.#db, this.#schema, name)
    return workerSettings({ ...this.#options.settings, ...settings, ...stored })
  }

  /** Settings that cannot work are refused whole; the worker goes on with those it has. */
  async #readSettings(name: string): Promise<void> {
    const served = this.#served.get(name)
    if (served === undefined) return
    const of = { worker: this.id, table: served.worker.table }
    let settings: WorkerSettings
    try {
      settings = await this.#settingsOf(served.declaration)
    } catch (error) {
      this.events.emit('settingsRefused', { ...of, error })
      return
    }
    if (JSON.stringify(settings) !== JSON.stringify(served.worker.settings)) this.#apply(name, settings)
  }

  #apply(name: string, settings: WorkerSettings): void {
    const worker = this.worker(name)
    const { table } = worker
    worker.change(settings)
    this.#link?.post({ type: 'timing', table, timing: settings })
    this.events.emit('settingsChanged', { worker: this.id, table, settings: { ...settings } })
  }

  #heard(message: FromLifeline): void {
    const { events, id: worker } = this
    switch (message.type) {
      case 'renewed':
      case 'renewalFailed':
        events.emit(message.type, { worker, ...message })
        break
      case 'lost':
        this.#of(message.table)?.worker.lost(message.row, message.reason)
        break
      case 'woken':
        this.#served.get(message.name)?.worker.wake()
        break
      case 'settingsChanged':
        this.#readSettings(message.name).catch((error: unknown) =>
          this.#trouble('reading the settings', error),
        )
        break
      case 'listening':
        this.#listening = true
        events.emit('listening', { worker })
        // What happened while nobody listened was not heard.
        for (const [name, served] of this.#served) {
          served.worker.wake()
          this.#readSettings(name).catch((error: unknown) => this.#trouble('reading the settings', error))
        }
        break
      case 'notListening':
        this.#listening = false
        events.emit('notListening', { worker, error: message.error })
        break
      case 'present':
        this.#whenKnown()
        break
      case 'returned':
        events.emit('workerReturned', { worker })
        break
      case 'trouble':
        this.#trouble(message.what, message.error)
        break
      case 'ready':
        for (const served of this.#served.values()) {
          const rows = served.worker.rowsToRenew()
          this.#link?.post({ type: 'hold', table: served.worker.table, rows: columnsOf(rows) })
        }
        break
      case 'stopped':
        break
    }
  }

  #of(table: string): Served | undefined {
    return [...this.#served.values()].find(({ worker }) => worker.table === table)
  }

  #trouble(what: string, error: unknown): void {
    this.events.emit('trouble', { worker: this.id, what, error })
  }
}

/** Starts everything and returns once it runs; what was started is stopped again when it cannot. */
export async function startRuntime(options: RuntimeOptions): Promise<Runtime> {
  const { workers = [], reaper = true } = options
  const roles = [...workers.map(({ name }) => name), ...(reaper ? ['reaper'] : [])]
  const { id } = describeWorker(roles, options.id === undefined ? {} : { id: options.id })
  const runtime = new Runtime(options, id)
  try {
    await runtime.start(roles)
    return runtime
  } catch (error) {
    await runtime.stop()
    throw error
  }
}

/** What a handler returns or throws must have somewhere to go. */
function refuseUnsettleable(table: LeaseTable): void {
  const missing = NEEDED_OUTCOMES.filter((outcome) => !(outcome in table.outcomes))
  if (missing.length === 0) return
  throw new LeaseholdError(
    'LEASE_TABLE_INVALID',
    `The lease table ${tableName(table)} cannot be worked off: it declares no outcome ${missing.join(', ')}.`,
    { remedy: 'Declare done, retry (args: error text, delay_ms float8) and dead (args: error text).' },
  )
}

export type { Clock }
