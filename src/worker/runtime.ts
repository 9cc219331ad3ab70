import { systemClock } from '../clock.ts'
import { checkTable } from '../lease/check-table.ts'
import type { DataErrorReport } from '../lease/data-errors.ts'
import type { TableShape } from '../lease/inspect.ts'
import { leaseStore, type LeaseStore } from '../lease/store.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { within } from '../postgres/deadline.ts'
import { migrate } from '../postgres/migrate.ts'
import { backgroundLoops } from './background.ts'
import { SILENT } from './context.ts'
import { Events } from './events.ts'
import { HeldRows } from './held-rows.ts'
import { startLifeline, type LifelineLink } from './lifeline-link.ts'
import type { FromLifeline, RowToRenew } from './lifeline-messages.ts'
import type { Loop } from './loop.ts'
import { describeWorker } from './registry.ts'
import { columnsOf } from './rows-to-renew.ts'
import { ServedWorkers, type ServedWorkersOptions } from './served-workers.ts'
import { SettingsLayers } from './settings-layers.ts'
import { createSinkProbe } from './sink-probe.ts'
import { SuspectSlot } from './suspect-slot.ts'
import type { WorkerSettings } from './settings.ts'
import { createWakeOthers, type WakeOthers } from './wake-others.ts'
import { refuseUnservable, type RuntimeOptions, type WorkDeclaration } from './work-declaration.ts'
import { Worker } from './worker.ts'

const PRESENCE_MS = 5_000
/** No statement of a worker takes this long while the database is well. */
const QUERY_TIMEOUT_MS = 10_000
const LONGEST_FAREWELL_MS = 6_000
const LONGEST_INTRODUCTION_MS = 3_000

/** What was declared, and the real table for it. */
interface Fitting {
  readonly declaration: WorkDeclaration
  readonly shape: TableShape
  readonly store: LeaseStore
}

/** A worker process's inside: its workers, their lifeline, the reaper, the settings they follow. */
export class Runtime {
  readonly id: string
  readonly events: Events
  readonly #options: RuntimeOptions
  readonly #db: Database
  readonly #schema: string
  readonly #shared: ServedWorkersOptions
  readonly #served: ServedWorkers
  readonly #loops: Loop[] = []
  readonly #stores: LeaseStore[] = []
  readonly #suspects = new SuspectSlot()
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
    this.#shared = {
      db: this.#db,
      schema: this.#schema,
      worker: id,
      events: this.events,
      post: (message) => this.#link?.post(message),
    }
    this.#served = new ServedWorkers(this.#shared)
  }

  get inFlight(): number {
    return this.#served.inFlight
  }

  /** Rows can be processed: the database side of the lifeline is up. */
  get listening(): boolean {
    return this.#listening
  }

  worker(name: string): Worker {
    return this.#served.named(name).worker
  }

  /** Changes the settings of one worker of this process, whole or not at all. */
  change(name: string, patch: Partial<WorkerSettings>): WorkerSettings {
    return this.#served.change(name, patch)
  }

  async start(roles: readonly string[]): Promise<void> {
    const { workers = [], migrate: migrating = true } = this.#options
    refuseUnservable(workers)
    if (migrating) await migrate(this.#db, { schema: this.#schema })
    // A thread takes longer to start than a table to look at, so both are done at once.
    const link = this.#startLifeline(roles)
    const known = this.#known()
    const fitting: Fitting[] = []
    for (const declaration of workers) {
      const shape = await checkTable(this.#db, declaration.table)
      const { table, bucket = 0 } = declaration
      const store = this.#storeOf(table, shape, bucket)
      // What a worker's rows are is its handler's business alone; here they are only passed on.
      fitting.push({ declaration: declaration as WorkDeclaration, shape, store })
    }
    // A worker that dies before the others know of it is missed only when its leases end.
    await known
    for (const one of fitting) await this.#serve(one, link)
    await this.#openReapedTables()
    const others = createWakeOthers({
      ...this.#shared,
      declared: [...workers, ...(this.#options.reapTables ?? [])],
    })
    const offs = [
      this.events.on('reaped', ({ table }) => this.#served.wakeAllOf(table)),
      () => others.close(),
    ]
    this.#others = others
    this.#off = () => offs.forEach((off) => off())
    this.#loops.push(...this.#background())
    for (const loop of this.#loops) loop.start()
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
    this.#link?.post({ type: 'stopping' })
    this.#whenKnown()
    const { clean } = await this.#served.stop()
    await within(LONGEST_FAREWELL_MS, this.#served.closeSinks())
    this.#off()
    if (this.#others !== undefined) await within(LONGEST_FAREWELL_MS, this.#others.all())
    // Side by side and bounded: a database that has fallen silent must not make a stop take a minute.
    await within(
      LONGEST_FAREWELL_MS,
      Promise.all([...this.#loops.map(async (loop) => loop.stop()), this.#link?.stop()]),
    )
    await within(LONGEST_FAREWELL_MS, this.#db.close())
    this.events.emit('workerStopped', { worker: this.id, clean })
    return { clean }
  }

  async #serve({ declaration, shape, store }: Fitting, link: LifelineLink): Promise<void> {
    const { name, table, bucket = 0 } = declaration
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
    const settings = await this.#served.firstSettings(name, tableName(table), layers)
    link.post({ type: 'serve', name, table, shape, bucket, held: held.buffer, timing: settings })
    const worker = new Worker({
      name,
      store,
      handle: declaration.handle,
      settings,
      limits: declaration.limits,
      groups: declaration.groups,
      suspects: this.#suspects,
      events: this.events,
      log: this.#options.log ?? SILENT,
      clock: systemClock,
      random: Math.random,
      held,
      hold: (rows: readonly RowToRenew[]) => link.post({ type: 'hold', name, rows: columnsOf(rows) }),
      isWoken: () => declaration.wake === true && this.#listening,
    })
    this.#served.add({ declaration, worker, layers })
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
      const served = [...this.#served].some(
        ({ declaration }) => declaration.table === table && (declaration.bucket ?? 0) === bucket,
      )
      if (!served) this.#stores.push(this.#storeOf(table, await checkTable(this.#db, table), bucket))
    }
  }

  #storeOf(table: LeaseTable, shape: TableShape, bucket: number): LeaseStore {
    const of = { worker: this.id, table: tableName(table) }
    const onDataError = (report: DataErrorReport): void => this.events.emit('dataError', { ...of, ...report })
    return leaseStore(this.#db, table, shape, { owner: this.id, bucket, onDataError })
  }

  #background(): Loop[] {
    return backgroundLoops({
      ...this.#shared,
      runtime: this.#options,
      stores: this.#stores,
      served: this.#served,
      presenceMs: this.#options.presenceMs ?? PRESENCE_MS,
      isListening: () => this.#listening,
    })
  }

  #heard(message: FromLifeline): void {
    const { events, id: worker } = this
    switch (message.type) {
      case 'listening':
        this.#listening = true
        events.emit('listening', { worker })
        // What happened while nobody listened was not heard.
        this.#served.catchUp()
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
        events.emit('trouble', { worker, what: message.what, error: message.error })
        break
      case 'stopped':
        break
      case 'ready':
      case 'renewed':
      case 'renewalFailed':
      case 'dataError':
      case 'lost':
      case 'woken':
      case 'settingsChanged':
        this.#served.heard(message)
        break
    }
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
