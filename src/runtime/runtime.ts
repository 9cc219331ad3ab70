import { systemClock } from '../clock.ts'
import { fitTable } from '../lease/fit.ts'
import { type TableShape } from '../lease/inspect.ts'
import { leaseStore, type LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { within } from '../postgres/deadline.ts'
import { migrate } from '../postgres/migrate.ts'
import { retryPolicy } from './back-off.ts'
import { type LogSource } from './context.ts'
import { Events } from './events.ts'
import { HeldRows } from './held-rows.ts'
import { startLifeline, type LifelineLink } from './lifeline-link.ts'
import { type FromLifeline, type RowToRenew } from './lifeline-messages.ts'
import { createLoop, type Loop } from './loop.ts'
import { createReaper } from './reaper.ts'
import { describeWorker } from './registry.ts'
import { byClaim, columnsOf } from './rows-to-renew.ts'
import { createSettingsFollower, type SettingsFollower } from './settings-follower.ts'
import { SettingsLayers } from './settings-layers.ts'
import { createSinkProbe } from './sink-probe.ts'
import { workerSettings, type WorkerSettings } from './settings.ts'
import { createUpkeep } from './upkeep.ts'
import { createWakeOthers, type WakeOthers } from './wake-others.ts'
import { refuseUnservable, type RuntimeOptions, type WorkDeclaration } from './work-declaration.ts'
import { Worker } from './worker.ts'

const PRESENCE_MS = 5_000
/** No statement of a worker takes this long while the database is well. */
const QUERY_TIMEOUT_MS = 10_000
const LONGEST_FAREWELL_MS = 6_000
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
  readonly layers: SettingsLayers
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
  readonly #stores: LeaseStore[] = []
  readonly #follower: SettingsFollower
  #link: LifelineLink | undefined
  #listening = false
  #off: () => void = () => undefined
  #others: WakeOthers | undefined
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
      queryTimeoutMs: QUERY_TIMEOUT_MS,
      applicationName: `leasehold worker ${id}`.slice(0, 63),
    })
    this.#follower = createSettingsFollower({
      db: this.#db,
      schema: this.#schema,
      worker: id,
      events: this.events,
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
    return this.#servedAs(name).worker
  }

  #servedAs(name: string): Served {
    const served = this.#served.get(name)
    if (served !== undefined) return served
    throw new TypeError(
      `there is no worker ${name}: there are ${[...this.#served.keys()].join(', ') || 'none'}`,
    )
  }

  /** Changes the settings of one worker of this process, whole or not at all. */
  change(name: string, patch: Partial<WorkerSettings>): WorkerSettings {
    const settings = this.#servedAs(name).layers.change(patch)
    this.#apply(name, settings)
    return settings
  }

  async start(roles: readonly string[]): Promise<void> {
    const { workers = [], migrate: migrating = true } = this.#options
    refuseUnservable(workers)
    if (migrating) await migrate(this.#db, { schema: this.#schema })
    // A thread takes longer to start than a table to look at, so both are done at once.
    const link = this.#startLifeline(roles)
    const known = this.#known()
    const shapes: TableShape[] = []
    for (const { table } of workers) shapes.push(await fitTable(this.#db, table))
    // A worker that dies before the others know of it is missed only when its leases end.
    await known
    for (const [i, declaration] of workers.entries()) {
      const shape = shapes[i]
      // What a worker's rows are is its handler's business alone; here they are only passed on.
      if (shape !== undefined) await this.#serve(declaration as WorkDeclaration, shape, link)
    }
    await this.#openReapedTables()
    const others = createWakeOthers({
      db: this.#db,
      schema: this.#schema,
      worker: this.id,
      events: this.events,
      declared: [...workers, ...(this.#options.reapTables ?? [])],
    })
    const offs = [
      this.events.on('reaped', ({ table }) => this.#wakeAllOf(table)),
      this.events.on('advanced', ({ table }) => this.#wakeAllOf(table)),
      () => others.close(),
    ]
    this.#others = others
    this.#off = () => offs.forEach((off) => off())
    this.#startLoops()
    this.events.emit('workerStarted', { worker: this.id, roles })
  }

  #startLifeline(roles: readonly string[]): LifelineLink {
    const link = startLifeline({
      config: {
        databaseUrl: this.#options.databaseUrl,
        listenUrl: this.#options.listenUrl ?? this.#options.databaseUrl,
        schema: this.#schema,
        worker: describeWorker(roles, { id: this.id }),
        listen: this.#options.listen ?? true,
        presenceMs: this.#options.presenceMs ?? PRESENCE_MS,
      },
      mode: this.#options.lifeline ?? 'thread',
      onMessage: (message) => this.#heard(message),
    })
    this.#link = link
    return link
  }

  /** Resolves once this worker is in the registry, or it is clear that this takes longer, or it stops. */
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
    this.#link?.post({ type: 'stopping' })
    this.#whenKnown()
    const stopped = await Promise.all(served.map(async ({ worker }) => worker.stop()))
    await this.#closeSinks()
    this.#off()
    if (this.#others !== undefined) await within(LONGEST_FAREWELL_MS, this.#others.all())
    // Side by side and bounded: a database that has fallen silent must not make a stop take a minute.
    await within(
      LONGEST_FAREWELL_MS,
      Promise.all([...this.#loops.map(async (loop) => loop.stop()), this.#link?.stop()]),
    )
    await within(LONGEST_FAREWELL_MS, this.#db.close())
    const clean = stopped.every((one) => one.clean)
    this.events.emit('workerStopped', { worker: this.id, clean })
    return { clean }
  }

  async #closeSinks(): Promise<void> {
    const close = async ({ declaration }: Served): Promise<void> => {
      try {
        await declaration.close?.()
      } catch (error) {
        this.#trouble(`closing what ${declaration.name} had opened`, error)
      }
    }
    await within(LONGEST_FAREWELL_MS, Promise.all([...this.#served.values()].map(close)))
  }

  async #serve(declaration: WorkDeclaration, shape: TableShape, link: LifelineLink): Promise<void> {
    const { name, table, bucket = 0 } = declaration
    const store = leaseStore(this.#db, table, shape, { owner: this.id, bucket })
    // An id that was given may have been another process's, which died; nobody else would miss it.
    if (this.#options.id !== undefined) await this.#takeBackOwn(store)
    await declaration.open?.({
      db: this.#db,
      worker: this.id,
      events: this.events,
      log: this.#options.log ?? SILENT,
    })
    const held = new HeldRows()
    const layers = new SettingsLayers(this.#options.settings, declaration.settings)
    const settings = (await this.#follower.read(name, tableName(table), layers)) ?? layers.store()
    link.post({ type: 'serve', name, table, shape, bucket, held: held.buffer, timing: settings })
    const worker = new Worker({
      name,
      store,
      handle: declaration.handle,
      settings,
      retry: retryPolicy(declaration.retry),
      limits: declaration.limits,
      lanes: declaration.lanes,
      events: this.events,
      log: this.#options.log ?? SILENT,
      clock: systemClock,
      random: Math.random,
      held,
      hold: (rows: readonly RowToRenew[]) => link.post({ type: 'hold', name, rows: columnsOf(rows) }),
      onAdvanced: () => this.#others?.soon(tableName(table)),
      isWoken: () => declaration.wake === true && this.#listening,
    })
    this.#served.set(name, { declaration, worker, layers })
    worker.start()
    if (declaration.probe !== undefined) this.#loops.push(createSinkProbe(declaration.probe, worker))
    this.#stores.push(store)
  }

  async #takeBackOwn(store: LeaseStore): Promise<void> {
    const of = { worker: this.id, table: tableName(store.table), evicted: true }
    for (;;) {
      const reaped = await store.reap({ ownedBy: this.id })
      for (const row of reaped) this.events.emit('reaped', { ...of, ...row })
      if (reaped.length === 0) return
    }
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
      this.#loops.push(...this.#upkeep())
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
        // Without LISTEN nobody tells of a change, so it is looked for.
        work: async () => (this.#listening ? undefined : this.#readAllSettings()),
        pauseMs: () => SETTINGS_POLL_MS,
        onError: (error) => this.#trouble('reading the settings', error),
      }),
    )
    for (const loop of this.#loops) loop.start()
  }

  #upkeep(): Loop[] {
    const { workers = [], reapTables = [] } = this.#options
    const [db, events, worker] = [this.#db, this.events, this.id]
    const tables = new Map([...reapTables, ...workers].map((declared) => [declared.table, declared.upkeep]))
    return [...tables].flatMap(([table, upkeep]) =>
      upkeep === undefined ? [] : [createUpkeep({ upkeep, table: tableName(table), worker, db, events })],
    )
  }

  async #readAllSettings(): Promise<void> {
    for (const name of this.#served.keys()) await this.#readSettings(name)
  }

  async #readSettings(name: string): Promise<void> {
    const served = this.#served.get(name)
    if (served === undefined) return
    const { worker, layers } = served
    const settings = await this.#follower.read(name, worker.table, layers)
    if (settings !== undefined && JSON.stringify(settings) !== JSON.stringify(worker.settings)) {
      this.#apply(name, settings)
    }
  }

  #apply(name: string, settings: WorkerSettings): void {
    const worker = this.worker(name)
    const { table } = worker
    worker.change(settings)
    this.#link?.post({ type: 'timing', name, timing: settings })
    this.events.emit('settingsChanged', { worker: this.id, table, settings: { ...settings } })
  }

  #heard(message: FromLifeline): void {
    const { events, id: worker } = this
    switch (message.type) {
      case 'renewed':
      case 'renewalFailed':
        events.emit(message.type, { ...message, worker, table: this.worker(message.name).table })
        break
      case 'lost':
        this.#served.get(message.name)?.worker.lost(message.row, message.reason)
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
        for (const [name, served] of this.#served) {
          for (const rows of byClaim(served.worker.rowsToRenew()))
            this.#link?.post({ type: 'hold', name, rows })
        }
        break
      case 'stopped':
        break
    }
  }

  #wakeAllOf(table: string): void {
    for (const { worker } of this.#served.values()) if (worker.table === table) worker.wake()
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
