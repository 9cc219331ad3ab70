import { systemClock } from '../clock.ts'
import { checkTable } from '../lease/check-table.ts'
import type { DataErrorReport } from '../lease/data-errors.ts'
import type { TableShape } from '../lease/inspect.ts'
import type { Lease } from '../lease/lease.ts'
import { heldLeases } from '../lease/leases.ts'
import { leaseStore, type LeaseStore } from '../lease/store.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { MAX_BATCH } from '../lease/table-sql.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { heartbeatScript, type ThreadScript } from '../package-files.ts'
import { within } from '../timeout.ts'
import { migrate, requireMigrations } from '../postgres/migrate.ts'
import { explainTimeout, whenAvailable } from '../postgres/waiting.ts'
import { createSinkProbe } from './claiming/pausing.ts'
import { SuspectSlot } from './claiming/suspect-slot.ts'
import { type LogSource, SILENT_LOG } from './context.ts'
import { Events, isDatabaseAway, reportError } from './events.ts'
import { HeldRows } from './heartbeat/held-rows.ts'
import type { FromHeartbeat } from './heartbeat/messages.ts'
import { startHeartbeat, type HeartbeatLink } from './heartbeat/start-heartbeat.ts'
import { createLoop, type Loop } from './loop.ts'
import { createMaintenance } from './reaper/maintenance.ts'
import { createOwnersWatch, type OwnersWatch } from './reaper/living-owners.ts'
import { createReaperWatch } from './reaper/missing-reaper.ts'
import { createExpiryLoop, createReaper, type Reaper, type ReaperOptions } from './reaper/reaper.ts'
import { createWakeOthers, type WakeOthers } from './reaper/wake-others.ts'
import { ProcessCounters } from './registry/counters.ts'
import {
  describeWorker,
  type Pause,
  reaping,
  type ServedTable,
  type WorkerInfo,
} from './registry/registry.ts'
import { takeWorkerId } from './registry/worker-id.ts'
import { ServedWorkers, type ServedWorkersOptions } from './served-workers.ts'
import { declaredSettings, SettingsLayers, workerSettings, type WorkerSettings } from './settings.ts'
import { stopDeadlines } from './stop-deadlines.ts'
import { logUnheard, STDERR_LOG, STDERR_REPORT } from './unheard-log.ts'
import {
  REAPER,
  refuseInvalidOptions,
  type RuntimeOptions,
  type WorkDeclaration,
} from './work-declaration.ts'
import { Worker } from './worker.ts'

const PRESENCE_MS = 5_000
/** Two claim loops, the reaper and maintenance seldom need more at once; a statement that finds none free waits. */
const MAX_CONNECTIONS = 6
/** No statement of a worker takes this long while the database answers normally. */
const QUERY_TIMEOUT_MS = 10_000
/** What closing takes at most, if the workers stopped early: no step waits for a database that does not answer. */
const MAX_CLOSE_MS = 4_000
const REGISTRATION_TIMEOUT_MS = 3_000
const REAPER_WATCH_TIMEOUT_MS = 3_000
const SETTINGS_POLL_MS = 1_000

/** A declaration, and the real table for it. */
interface CheckedWork {
  readonly declaration: WorkDeclaration
  readonly shape: TableShape
  readonly store: LeaseStore
}

/** Of a worker process: it is `stopping` from the moment when it is told to stop. */
export type RunState = 'starting' | 'running' | 'stopping'

/** A worker process: its workers, their heartbeat, the reaper, and the settings that they apply. */
export class Runtime {
  readonly id: string
  readonly events: Events
  readonly #options: RuntimeOptions
  readonly #log: LogSource
  readonly #db: Database
  readonly #schema: string
  readonly #shared: ServedWorkersOptions
  readonly #served: ServedWorkers
  readonly #loops: Loop[] = []
  readonly #stores: LeaseStore[] = []
  readonly #suspects = new SuspectSlot()
  readonly #counters: ProcessCounters
  /** Its subscriptions, which end with it: the events may be those of many runtimes. */
  readonly #offs: (() => void)[] = []
  #onReaperRan: () => void = () => undefined
  readonly #reaperHasRun = new Promise<void>((resolve) => {
    this.#onReaperRan = resolve
  })
  #stopWaking: () => void = () => undefined
  #heartbeat: HeartbeatLink | undefined
  #isRunning = false
  #isListening = false
  #isDatabaseAway = false
  /** Of the tables of our own applications. The heartbeat tells it. */
  #bucketCount = 1
  readonly #owners: OwnersWatch
  #reaper: Reaper | undefined
  /** The tables that the registry shows as reaped by this process. */
  #reaps: readonly string[] = []
  readonly #leftToOthers = new Set<string>()
  #wakeOthers: WakeOthers | undefined
  #onRegistered: () => void = () => undefined
  #stopped: Promise<{ readonly clean: boolean }> | undefined

  constructor(options: RuntimeOptions, id: string) {
    this.#options = options
    this.id = id
    this.events = options.events ?? new Events()
    this.#counters = new ProcessCounters(this.events, id)
    this.#log = options.log === false ? SILENT_LOG : (options.log ?? STDERR_LOG)
    this.#schema = options.schema ?? 'leasehold'
    this.#db = openDatabase({
      url: options.databaseUrl,
      maxConnections: options.maxConnections ?? MAX_CONNECTIONS,
      queryTimeoutMs: QUERY_TIMEOUT_MS,
      applicationName: `leasehold worker ${id}`.slice(0, 63),
      neededRole: 'worker',
    })
    this.#shared = {
      db: this.#db,
      schema: this.#schema,
      worker: id,
      events: this.events,
      post: (message) => this.#heartbeat?.post(message),
    }
    this.#served = new ServedWorkers(this.#shared)
    this.#owners = createOwnersWatch(this.#db, this.#schema)
  }

  /** The number of rows in flight. */
  get inFlight(): number {
    return this.#served.inFlight
  }

  /** Which of its workers do not claim at the moment, and why: the target is unavailable, or an operator paused them. */
  get paused(): readonly Pause[] {
    return this.#served.pauses
  }

  get state(): RunState {
    if (this.#stopped !== undefined) return 'stopping'
    return this.#isRunning ? 'running' : 'starting'
  }

  /** The tables whose rows its workers process or it reaps, as `schema.table`. */
  get tables(): readonly string[] {
    const { workers = [], reapTables = [] } = this.#options
    return [...new Set([...workers, ...reapTables].map(({ table }) => tableName(table)))]
  }

  /** Wake-ups and changed settings arrive by NOTIFY. */
  get listening(): boolean {
    return this.#isListening
  }

  worker(name: string): Worker {
    return this.#served.named(name).worker
  }

  /** Changes the settings of one worker of this process, whole or not at all. */
  change(name: string, patch: Partial<WorkerSettings>): WorkerSettings {
    return this.#served.change(name, patch)
  }

  /**
   * Takes back at once what a worker process held whose end the caller has seen, in the tables that this one reaps. For a
   * program that starts worker processes itself. Resolves when its leases have been taken back; a process that does not
   * reap takes nothing back.
   */
  async evict(workerId: string): Promise<void> {
    await this.#reaper?.evict(workerId)
  }

  /**
   * Leaves the reaping and the maintenance of these tables, and of no others, to other processes. For a program that
   * starts worker processes itself, when they have a newer declaration of a table than it has.
   */
  reapExcept(tables: readonly string[]): void {
    this.#leftToOthers.clear()
    for (const table of tables) this.#leftToOthers.add(table)
  }

  /** Resolves once its reaper has run, and the registry shows what it reaps; but not later than after this time. */
  async untilReaperHasRun(timeoutMs: number): Promise<void> {
    await within(timeoutMs, this.#reaperHasRun)
  }

  async start(roles: readonly string[]): Promise<void> {
    try {
      await this.#startNow(roles)
    } catch (error) {
      throw await explainTimeout(this.#db, error)
    }
  }

  async #startNow(roles: readonly string[]): Promise<void> {
    const { workers = [], reapTables = [] } = this.#options
    this.#offs.push(
      logUnheard(this.events, this.id, this.#log),
      this.events.onInternal('reaperFailed', ({ worker, error }) => {
        if (worker === this.id && isDatabaseAway(error)) this.#trouble('reaping', error)
      }),
      ...(['databaseLost', 'databaseBack'] as const).map((type) =>
        this.events.onInternal(type, ({ worker }) => {
          if (worker === this.id) this.#isDatabaseAway = type === 'databaseLost'
        }),
      ),
    )
    await this.#whenAvailable(async () =>
      this.#options.migrate === true
        ? void (await migrate(this.#db, { schema: this.#schema }))
        : requireMigrations(this.#db, this.#schema),
    )
    const info = this.#describe(roles)
    // A given id may be that of a process that is alive, whose rows are not to be taken back.
    if (this.#options.id !== undefined)
      await this.#whenAvailable(async () => takeWorkerId(this.#db, this.#schema, info, this.events))
    const thread = this.#options.heartbeat === 'inline' ? 'inline' : await heartbeatScript()
    // A thread takes longer to start than the tables to check, so both are done at once.
    const heartbeat = this.#startHeartbeat(info, thread)
    // If a process dies before it is in the registry, nobody notices until its leases expire. And a start that is refused
    // while its registration is on the way would leave it there as alive.
    const [checked] = await Promise.allSettled([
      this.#whenAvailable(async () => this.#checkedWork(workers)),
      this.#registered(),
    ])
    if (checked.status === 'rejected') throw checked.reason
    for (const work of checked.value) await this.#serve(work, heartbeat)
    await this.#whenAvailable(async () => this.#openReapedTables())
    const wakeOthers = createWakeOthers({ ...this.#shared, declared: [...workers, ...reapTables] })
    const off = this.events.onInternal('reaped', ({ table }) => this.#served.wakeAllOf(table))
    this.#wakeOthers = wakeOthers
    this.#stopWaking = () => {
      off()
      wakeOthers.close()
    }
    if (this.#options.reaper !== false) {
      this.#reaper = this.#createReaper()
      this.#loops.push(this.#reaper, ...this.#maintenance())
    } else this.#loops.push(createExpiryLoop(this.#reaping))
    this.#loops.push(this.#activityLoop(), this.#settingsLoop())
    for (const loop of this.#loops) loop.start()
    if (this.#options.reaper === false) await this.#watchForReaper()
    this.#isRunning = true
    this.events.emit('workerStarted', { worker: this.id, roles })
  }

  /**
   * Workers first, then what they need to be alive. Not clean: rows are still leased. The reapers of other processes take
   * them back as if this one had died, a few seconds after its session has ended.
   */
  async stop(): Promise<{ readonly clean: boolean }> {
    this.#stopped ??= this.#stopNow()
    return this.#stopped
  }

  async #stopNow(): Promise<{ readonly clean: boolean }> {
    const end = this.#stopEnd()
    this.#heartbeat?.post({ type: 'stopping' })
    this.#onRegistered()
    const { clean } = await this.#served.stop()
    this.#stopWaking()
    // The registry is to have the final sums.
    this.#tellActivity()
    const closing = Promise.all([
      this.#served.closeSinks(),
      this.#wakeOthers?.all(),
      ...this.#loops.map(async (loop) => loop.stop()),
    ])
    const closeMs = Math.max(0, Math.min(MAX_CLOSE_MS, end - systemClock.monotonicNow()))
    await Promise.all([
      this.#heartbeat?.stop({ clean, withinMs: closeMs }),
      within(closeMs / 2, closing).then(async () =>
        within(closeMs / 2, this.#db.close({ withinMs: closeMs / 4 })),
      ),
    ])
    this.events.emit('workerStopped', { worker: this.id, clean })
    for (const off of this.#offs) off()
    this.#counters.close()
    return { clean }
  }

  /** By when a stop that begins now is over, for the worker that may take longest. */
  #stopEnd(): number {
    const now = systemClock.monotonicNow()
    const settings = [...this.#served].map(({ worker }) => worker.settings)
    const all = settings.length === 0 ? [workerSettings(declaredSettings(this.#options.settings))] : settings
    return Math.max(...all.map((each) => stopDeadlines(now, each).end))
  }

  /** A step of the start, which may be repeated. */
  async #whenAvailable<Result>(step: () => Promise<Result>): Promise<Result> {
    let hasWaited = false
    const result = await whenAvailable(step, {
      waitMs: this.#options.databaseWaitMs ?? 0,
      signal: this.#options.signal,
      onWait: (error) => {
        hasWaited = true
        this.#trouble('starting', error)
      },
    })
    if (hasWaited) this.events.emit('databaseBack', { worker: this.id })
    return result
  }

  #describe(roles: readonly string[]): WorkerInfo {
    return describeWorker(roles, { id: this.id, declared: this.#declared(), serves: this.#servedTables() })
  }

  #startHeartbeat(worker: WorkerInfo, thread: ThreadScript | 'inline'): HeartbeatLink {
    const heartbeat = startHeartbeat({
      config: {
        databaseUrl: this.#options.databaseUrl,
        listenUrl: this.#options.listenUrl ?? this.#options.databaseUrl,
        schema: this.#schema,
        worker,
        isRegistered: this.#options.id !== undefined,
        listen: this.#options.listen ?? true,
        presenceMs: this.#presenceMs,
      },
      thread,
      onMessage: (message) => this.#heard(message),
    })
    this.#heartbeat = heartbeat
    return heartbeat
  }

  /** What changes of the settings are checked against, by whoever makes them; and which groups a worker has. */
  #declared(): Record<string, Partial<WorkerSettings> & { readonly groups?: readonly string[] }> {
    const { workers = [], reapTables = [], settings } = this.#options
    const named = reapTables.flatMap(({ name, settings: own }) =>
      name === undefined ? [] : [[name, declaredSettings(settings, own)] as const],
    )
    const running = workers.map(({ name, settings: own, groups }) => {
      const names = groups?.names === undefined ? {} : { groups: groups.names }
      return [name, { ...declaredSettings(settings, own), ...names }] as const
    })
    return Object.fromEntries([...named, ...running])
  }

  #servedTables(): Record<string, ServedTable> {
    const { workers = [] } = this.#options
    return Object.fromEntries(
      workers.map(({ name, role = name, table }) => [name, { table: tableName(table), role }]),
    )
  }

  get #presenceMs(): number {
    return this.#options.presenceMs ?? PRESENCE_MS
  }

  /** Resolves once this process is in the registry, or it is clear that this takes longer, or it stops. */
  async #registered(): Promise<void> {
    const registered = new Promise<void>((resolve) => {
      this.#onRegistered = resolve
    })
    await within(REGISTRATION_TIMEOUT_MS, registered)
  }

  async #serve({ declaration, shape, store }: CheckedWork, heartbeat: HeartbeatLink): Promise<void> {
    const { name, table, bucket = 0 } = declaration
    // A given id may have belonged to a process that died; no reaper would find this one missing.
    if (this.#options.id !== undefined) await this.#whenAvailable(async () => this.#takeBackOwn(store))
    const held = new HeldRows()
    const layers = new SettingsLayers(this.#options.settings, declaration.settings)
    const settings = await this.#whenAvailable(async () =>
      this.#served.firstSettings(name, tableName(table), layers),
    )
    let started: Worker | undefined
    await this.#whenAvailable(async () =>
      declaration.open?.({
        db: this.#db,
        worker: this.id,
        events: this.events,
        log: this.#options.log === undefined ? STDERR_REPORT : this.#log,
        settings: () => started?.settings ?? settings,
      }),
    )
    heartbeat.post({ type: 'serve', name, table, shape, bucket, held: held.buffer, timing: settings })
    const worker = new Worker({
      name,
      store,
      handle: declaration.handle,
      describe: declaration.describe,
      settings,
      limits: declaration.limits,
      groups: declaration.groups,
      suspects: this.#suspects,
      events: this.events,
      log: this.#log,
      clock: systemClock,
      random: Math.random,
      held,
      hold: ({ index, generation }, address) =>
        heartbeat.post({ type: 'hold', name, row: { index, generation }, address }),
      findForgotten: async () => this.#findForgotten(table),
      isWoken: () => declaration.wake === true && this.#isListening,
    })
    this.#served.add({ declaration, worker, layers })
    started = worker
    worker.start()
    if (declaration.probe !== undefined) this.#loops.push(createSinkProbe(declaration.probe, worker))
    this.#stores.push(store)
  }

  async #takeBackOwn(store: LeaseStore): Promise<void> {
    const of = { worker: this.id, table: tableName(store.table), evicted: true }
    for (;;) {
      const reason = `the worker process ${this.id} died, and was started again`
      const reaped = await store.reap({ ownedBy: this.id, reason })
      for (const { exhausted, ...row } of reaped) {
        this.events.emit('reaped', { ...of, ...row, outcome: exhausted ? 'dead' : 'retry' })
      }
      if (reaped.length === 0) return
    }
  }

  /** Leases of this process that have expired, on rows that none of its workers knows: the answer to their claim was lost. */
  async #findForgotten(table: LeaseTable): Promise<Lease[]> {
    const { leases } = await heldLeases(this.#db, table, { owner: this.id, limit: MAX_BATCH })
    const known = this.#served.idsOf(tableName(table))
    return leases
      .filter(({ id, leftMs }) => leftMs <= 0 && !known.has(id))
      .map(({ id, owner, bucket, token, until }) => ({
        id,
        owner,
        bucket: bucket ?? undefined,
        token: BigInt(token ?? 0),
        until,
      }))
  }

  async #openReapedTables(): Promise<void> {
    const { reapTables = [], settings } = this.#options
    for (const { name, table, bucket = 0, settings: declared } of reapTables) {
      if (name !== undefined) {
        await this.#served.addReaped(name, tableName(table), new SettingsLayers(settings, declared))
      }
      const isServed = [...this.#served].some(
        ({ declaration }) => declaration.table === table && (declaration.bucket ?? 0) === bucket,
      )
      if (!isServed) this.#stores.push(this.#storeOf(table, await this.#checked(table), bucket))
    }
  }

  async #checkedWork(workers: readonly WorkDeclaration<never>[]): Promise<CheckedWork[]> {
    const checked: CheckedWork[] = []
    for (const declaration of workers) {
      const shape = await this.#checked(declaration.table)
      const store = this.#storeOf(declaration.table, shape, declaration.bucket ?? 0)
      // What a worker's rows are concerns its handler alone; here they are only passed on.
      checked.push({ declaration: declaration as WorkDeclaration, shape, store })
    }
    return checked
  }

  async #checked(table: LeaseTable): Promise<TableShape> {
    const { shape, slow } = await checkTable(this.#db, table)
    for (const each of slow)
      this.events.emit('tableSlow', { worker: this.id, table: tableName(table), ...each })
    return shape
  }

  #storeOf(table: LeaseTable, shape: TableShape, bucket: number | 'all'): LeaseStore {
    const of = { worker: this.id, table: tableName(table) }
    const onDataError = (report: DataErrorReport): void => this.events.emit('dataError', { ...of, ...report })
    // How many buckets a table of the user's has is not known: those with rows are found.
    const isOwn = table.schema === this.#schema
    const count = isOwn ? { bucketCount: () => this.#bucketCount } : {}
    return leaseStore(this.#db, table, shape, { owner: this.id, bucket, onDataError, ...count })
  }

  get #reaping(): ReaperOptions {
    return {
      ...this.#shared,
      stores: this.#stores,
      auditRetentionMs: this.#options.auditRetentionMs,
      settings: ({ table }) => ({ reaperIntervalMs: this.#reaperIntervalMs(tableName(table)) }),
      except: ({ table }) => this.#served.takenBackByWorkers(tableName(table)),
      isLeftToOthers: (table) => this.#leftToOthers.has(table),
      ...(this.#options.eviction === false ? {} : { owners: this.#owners }),
    }
  }

  #createReaper(): Reaper {
    const { eviction = true } = this.#options
    const reaper = createReaper({
      ...this.#reaping,
      onRan: (tables) => void this.#reaperRan(tables),
      ...(eviction ? {} : { eviction: false }),
    })
    this.#offs.push(this.events.onInternal('settingsChanged', () => reaper.hasten()))
    return reaper
  }

  /** Others rely on the registry for whether a table is reaped, so it does not wait for the next presence. */
  async #reaperRan(tables: readonly string[]): Promise<void> {
    try {
      if (tables.join() !== this.#reaps.join()) {
        this.#reaps = tables
        this.#tellActivity()
        await this.#db.query(reaping(this.#schema, this.id, tables))
      }
    } catch (error) {
      this.#trouble('telling the registry which tables are reaped', error)
    }
    this.#onReaperRan()
  }

  /** Resolves after the first check, unless it takes longer. */
  async #watchForReaper(): Promise<void> {
    const checked = new Promise<void>((resolve) => {
      const watch = createReaperWatch({ ...this.#shared, tables: this.tables, onChecked: resolve })
      this.#loops.push(watch)
      watch.start()
    })
    await within(REAPER_WATCH_TIMEOUT_MS, checked)
  }

  /** The shortest that its workers have declared or were set to, whether they run in this process or not. */
  #reaperIntervalMs(table: string): number {
    const intervals = this.#served.settingsOf(table).map(({ reaperIntervalMs }) => reaperIntervalMs)
    return intervals.length === 0
      ? workerSettings(declaredSettings(this.#options.settings)).reaperIntervalMs
      : Math.min(...intervals)
  }

  /** Once for each table, however many workers it has. */
  #maintenance(): Loop[] {
    const { workers = [], reapTables = [] } = this.#options
    const tables = new Map([...reapTables, ...workers].map(({ table, maintenance }) => [table, maintenance]))
    return [...tables].flatMap(([table, maintenance]) =>
      maintenance === undefined
        ? []
        : [
            createMaintenance({
              ...this.#shared,
              maintenance,
              table: tableName(table),
              isLeftToOthers: (name) => this.#leftToOthers.has(name),
            }),
          ],
    )
  }

  #tellActivity(): void {
    const { inFlight, paused } = this
    this.#heartbeat?.post({
      type: 'activity',
      inFlight,
      paused,
      reaps: this.#reaps,
      counters: this.#counters.read(),
    })
  }

  /** The registry shows what a process has done, how many rows it has in flight, and which of its workers do not claim. */
  #activityLoop(): Loop {
    const loop = createLoop({
      name: 'activity',
      work: async () => Promise.resolve(this.#tellActivity()),
      pauseMs: () => this.#presenceMs,
      onError: (error) => this.#trouble('telling the registry what the process does', error),
    })
    const changes = (['paused', 'resumed'] as const).map((type) =>
      this.events.onInternal(type, ({ worker }) => {
        if (worker === this.id) loop.hasten()
      }),
    )
    this.#offs.push(...changes)
    return loop
  }

  /** Without LISTEN no change of the settings is announced, so they are polled. */
  #settingsLoop(): Loop {
    return createLoop({
      name: 'settings',
      work: async () => (this.#isListening ? undefined : this.#served.readAllSettings()),
      pauseMs: () => SETTINGS_POLL_MS,
      onError: (error) => this.#trouble('reading the settings', error),
    })
  }

  #heard(message: FromHeartbeat): void {
    const { events, id: worker } = this
    switch (message.type) {
      case 'listening':
        this.#isListening = true
        events.emit('listening', { worker })
        // Notifications that were sent before are lost.
        this.#served.catchUp()
        break
      case 'notListening':
        this.#isListening = false
        events.emit('notListening', { worker, error: message.error })
        break
      case 'present':
        this.#bucketCount = message.buckets
        this.#onRegistered()
        this.#served.countProcesses(message.processes)
        // A worker says so itself, once it has claimed or settled; a process that only reaps has none.
        if (this.#isDatabaseAway && !this.#served.isFailing) events.emit('databaseBack', { worker })
        break
      case 'returned':
        events.emit('workerReturned', { worker })
        break
      case 'trouble':
        this.#trouble(message.what, message.error)
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

  #trouble(what: string, error: unknown): void {
    reportError(this.events, this.id, what, error)
  }
}

/** Starts a worker process and resolves once it runs; if it cannot start, what was started is stopped. */
export async function startRuntime(options: RuntimeOptions): Promise<Runtime> {
  refuseInvalidOptions(options)
  const { workers = [], reaper = true } = options
  const roles = [...workers.map(({ name }) => name), ...(reaper ? [REAPER] : [])]
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
