import type { Database } from '../postgres/database.ts'
import { type Events, reportError } from './events.ts'
import type { FromHeartbeat, ToHeartbeat } from './heartbeat/messages.ts'
import type { Pause } from './registry/registry.ts'
import { readSettings } from './registry/stored-settings.ts'
import type { SettingsLayers, WorkerSettings } from './settings.ts'
import type { WorkDeclaration } from './work-declaration.ts'
import type { Worker } from './worker.ts'

export interface Served {
  readonly declaration: WorkDeclaration
  readonly worker: Worker
  readonly layers: SettingsLayers
}

/** Between two readings of the settings of one worker. */
const MIN_READING_INTERVAL_MS = 100

/** What a reaper has to know of a worker that runs elsewhere. */
interface Reaped {
  readonly table: string
  readonly layers: SettingsLayers
  settings: WorkerSettings
}

/** One reading of settings, and those that follow because a change was announced meanwhile. */
interface Reading {
  isOutdated: boolean
  readonly over: Promise<void>
}

export interface ServedWorkersOptions {
  readonly db: Database
  readonly schema: string
  /** The id of the process. */
  readonly worker: string
  readonly events: Events
  /** Sends a message to the heartbeat. */
  readonly post: (message: ToHeartbeat) => void
}

type MessageForWorkers = Extract<FromHeartbeat, { readonly name: string } | { readonly type: 'ready' }>

/** The workers of one process by their names, and the settings that they apply. */
export class ServedWorkers {
  readonly #options: ServedWorkersOptions
  readonly #byName = new Map<string, Served>()
  /** Workers of other processes, whose tables this process reaps. */
  readonly #reaped = new Map<string, Reaped>()
  /** How many processes run a worker, by its name, as the registry last told. */
  #processes: Readonly<Record<string, number>> = {}
  /** Whose settings are being read, by name. */
  readonly #readings = new Map<string, Reading>()
  /** When they were last read, by name. */
  readonly #readAt = new Map<string, number>()
  #isStopped = false

  constructor(options: ServedWorkersOptions) {
    this.#options = options
  }

  get inFlight(): number {
    return [...this].reduce((sum, { worker }) => sum + worker.inFlight, 0)
  }

  get pauses(): readonly Pause[] {
    return [...this].flatMap(({ worker }) => worker.pauses)
  }

  /** The last statement of a worker failed. */
  get isFailing(): boolean {
    return [...this].some(({ worker }) => worker.isFailing)
  }

  [Symbol.iterator](): IterableIterator<Served> {
    return this.#byName.values()
  }

  /** A change that was announced between `firstSettings` and this was not applied, so they are read once more. */
  add(served: Served): void {
    const { name } = served.declaration
    this.#byName.set(name, served)
    void this.#read(name)
  }

  #find(name: string): Worker | undefined {
    return this.#byName.get(name)?.worker
  }

  named(name: string): Served {
    const served = this.#byName.get(name)
    if (served !== undefined) return served
    throw new TypeError(
      `there is no worker ${name}: there are ${[...this.#byName.keys()].join(', ') || 'none'}`,
    )
  }

  /** How many processes run each worker: a wake-up reaches all of them. */
  countProcesses(processes: Readonly<Record<string, number>>): void {
    this.#processes = processes
  }

  /** The settings of all workers of this table that this process knows of. */
  settingsOf(table: string): WorkerSettings[] {
    const served = [...this].flatMap(({ worker }) => (worker.table === table ? [worker.settings] : []))
    const reaped = [...this.#reaped.values()].flatMap((each) => (each.table === table ? [each.settings] : []))
    return [...served, ...reaped]
  }

  /** The ids of all rows of this table that its own workers may have leased. */
  idsOf(table: string): Set<string> {
    return new Set([...this].flatMap(({ worker }) => (worker.table === table ? worker.ids : [])))
  }

  /** The ids of rows of this table that its own workers take back, because their handlers hang. */
  takenBackByWorkers(table: string): string[] {
    return [...this].flatMap(({ worker }) => (worker.table === table ? worker.takesBack : []))
  }

  /** From now on this process follows the settings of a worker that runs elsewhere. */
  async addReaped(name: string, table: string, layers: SettingsLayers): Promise<void> {
    if (this.#byName.has(name)) return
    this.#reaped.set(name, { table, layers, settings: await this.#storedSettings(name, table, layers) })
    void this.#read(name)
  }

  /** The settings of a worker that is about to start. */
  async firstSettings(name: string, table: string, layers: SettingsLayers): Promise<WorkerSettings> {
    return this.#storedSettings(name, table, layers)
  }

  /** What is stored and cannot work must not keep any worker from running, from starting or from being paused. */
  async #storedSettings(name: string, table: string, layers: SettingsLayers): Promise<WorkerSettings> {
    const { db, schema, worker, events } = this.#options
    const { settings, refused } = layers.store(await readSettings(db, schema, name))
    if (refused !== undefined) events.emit('settingsRefused', { worker, table, error: refused })
    return settings
  }

  /** Changes the settings of one worker of this process, whole or not at all. */
  change(name: string, patch: Partial<WorkerSettings>): WorkerSettings {
    const served = this.named(name)
    const settings = served.layers.change(patch)
    this.#apply(served, settings)
    return settings
  }

  async readAllSettings(): Promise<void> {
    for (const name of [...this.#byName.keys(), ...this.#reaped.keys()]) await this.#read(name)
  }

  async #readSettings(name: string): Promise<void> {
    const served = this.#byName.get(name)
    const reaped = this.#reaped.get(name)
    if (reaped !== undefined) await this.#readReaped(name, reaped)
    if (served === undefined) return
    const { worker, layers } = served
    const settings = await this.#storedSettings(name, worker.table, layers)
    if (JSON.stringify(settings) !== JSON.stringify(worker.settings)) {
      this.#apply(served, settings)
    }
  }

  async #readReaped(name: string, reaped: Reaped): Promise<void> {
    const { table, layers, settings: before } = reaped
    reaped.settings = await this.#storedSettings(name, table, layers)
    if (JSON.stringify(reaped.settings) !== JSON.stringify(before)) this.#tellChanged(table, reaped.settings)
  }

  #apply({ declaration: { name }, worker }: Served, settings: WorkerSettings): void {
    worker.change(settings)
    this.#options.post({ type: 'timing', name, timing: settings })
    this.#tellChanged(worker.table, settings)
  }

  #tellChanged(table: string, settings: WorkerSettings): void {
    const { events, worker } = this.#options
    events.emit('settingsChanged', { worker, table, settings: { ...settings } })
  }

  /** Messages of the heartbeat: about one worker, or (`ready`) that it starts. */
  heard(message: MessageForWorkers): void {
    const { events, worker } = this.#options
    switch (message.type) {
      case 'renewed':
      case 'renewalFailed':
      case 'dataError':
        events.emit(message.type, { ...message, worker, table: this.named(message.name).worker.table })
        break
      case 'lost':
        this.#find(message.name)?.lost(message.row, message.reason)
        break
      case 'woken':
        this.#find(message.name)?.wake(this.#processes[message.name])
        break
      case 'settingsChanged':
        void this.#read(message.name)
        break
      case 'ready':
        for (const { worker: one } of this) one.heartbeatStarted()
        break
    }
  }

  /** Notifications may have been lost while the process did not listen. */
  catchUp(): void {
    for (const { worker } of this) {
      worker.wake()
      void this.#read(worker.name)
    }
    for (const name of this.#reaped.keys()) void this.#read(name)
  }

  /**
   * Reads the settings as they are now or later, and applies them. Settings of one name are read one reading after the
   * other: of two at once, the older answer could arrive last and undo what the newer one has applied, such as a pause.
   * However many changes are announced during a reading, one more follows.
   */
  async #read(name: string): Promise<void> {
    const running = this.#readings.get(name)
    if (running !== undefined) {
      running.isOutdated = true
      return running.over
    }
    const reading: Reading = {
      isOutdated: true,
      over: Promise.resolve().then(async () => this.#follow(name, reading)),
    }
    this.#readings.set(name, reading)
    return reading.over
  }

  async #follow(name: string, reading: Reading): Promise<void> {
    const { events, worker } = this.#options
    while (reading.isOutdated) {
      await this.#pauseBefore(name)
      if (this.#isStopped) break
      reading.isOutdated = false
      await this.#readSettings(name).catch((error: unknown) =>
        reportError(events, worker, 'reading the settings', error),
      )
    }
    this.#readings.delete(name)
  }

  /** Whoever may connect can announce changes, as many as it likes. */
  async #pauseBefore(name: string): Promise<void> {
    const leftMs = (this.#readAt.get(name) ?? -Infinity) + MIN_READING_INTERVAL_MS - performance.now()
    if (leftMs > 0) await new Promise((resolve) => setTimeout(resolve, leftMs))
    this.#readAt.set(name, performance.now())
  }

  /** Rows of this table may have become claimable. */
  wakeAllOf(table: string): void {
    for (const { worker } of this) if (worker.table === table) worker.wake()
  }

  /** Not clean: rows are still leased. */
  async stop(): Promise<{ readonly clean: boolean }> {
    this.#isStopped = true
    const stopped = await Promise.all([...this].map(async ({ worker }) => worker.stop()))
    return { clean: stopped.every(({ clean }) => clean) }
  }

  /** Closes what their handlers had opened. */
  async closeSinks(): Promise<void> {
    await Promise.all([...this].map(async ({ declaration }) => this.#closeSink(declaration)))
  }

  async #closeSink(declaration: WorkDeclaration): Promise<void> {
    const { events, worker } = this.#options
    try {
      await declaration.close?.()
    } catch (error) {
      events.emit('trouble', { worker, what: `closing what ${declaration.name} had opened`, error })
    }
  }
}
