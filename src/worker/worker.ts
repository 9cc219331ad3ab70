import type { Clock } from '../clock.ts'
import type { Lease } from '../lease/lease.ts'
import type { LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { messageOf, withoutUrlPasswords } from '../errors.ts'
import { within } from '../timeout.ts'
import type { Groups } from './claiming/groups.ts'
import { type PauseChange, PauseGate } from './claiming/pausing.ts'
import type { SuspectSlot } from './claiming/suspect-slot.ts'
import { Completion } from './completion/completion.ts'
import { LostRows } from './completion/lost-rows.ts'
import type { Outcome } from './completion/outcome.ts'
import { type HandlerContext, type LogSource, RowContext } from './context.ts'
import type { Events, LossReason, PauseReason } from './events.ts'
import type { HeldRow, HeldRows } from './heartbeat/held-rows.ts'
import { LeaseWatch } from './heartbeat/lease-watch.ts'
import type { Pause } from './registry/registry.ts'
import { RowsInFlight } from './rows-in-flight.ts'
import type { WorkerSettings } from './settings.ts'
import { stopDeadlines } from './stop-deadlines.ts'
import { WorkerCycle } from './cycle.ts'
import type { Limits } from './slots/limits.ts'
import { Slots } from './slots/slots.ts'

export type Handler<Row> = (context: HandlerContext<Row>) => Promise<Outcome | void>

export interface WorkerOptions<Row extends object> {
  readonly name: string
  readonly store: LeaseStore<Row>
  readonly handle: Handler<Row>
  readonly describe?: ((row: Row) => Readonly<Record<string, string>>) | undefined
  readonly settings: WorkerSettings
  readonly limits?: Limits<Row> | undefined
  readonly groups?: Groups<Row> | undefined
  /** Shared by all workers of the process. */
  readonly suspects: SuspectSlot
  readonly events: Events
  readonly log: LogSource
  readonly clock: Clock
  readonly random: () => number
  /** Which rows are held, shared with the heartbeat. */
  readonly held: HeldRows
  /** Tells the heartbeat of a row whose address is too long for the memory that they share. */
  readonly hold: (row: HeldRow, address: string) => void
  /** The expired leases of this process on rows of this table that none of its workers knows. */
  readonly findForgotten: () => Promise<readonly Lease[]>
  /** Wake-ups arrive: an idle worker need not poll as often. */
  readonly isWoken: () => boolean
}

/** Of the error that caused a pause, at most this many characters are stored. */
const MAX_PAUSE_ERROR_LENGTH = 300

/**
 * Works off one table: claim → run → settle. `WorkerCycle` sends the statements, the slots run the handlers,
 * `Completion` decides what becomes of each row. The rows in flight are bounded from claim to confirmed settlement:
 * slots plus prefetch.
 */
export class Worker<Row extends object = Record<string, unknown>> {
  readonly name: string
  readonly table: string
  readonly #options: WorkerOptions<Row>
  readonly #gate: PauseGate
  readonly #inFlight: RowsInFlight<Row>
  readonly #lostRows: LostRows<Row>
  readonly #cycle: WorkerCycle<Row>
  readonly #slots: Slots<Row>
  readonly #watch: LeaseWatch<Row>
  readonly #pauses = new Map<PauseReason, Pause>()
  #settings: WorkerSettings

  constructor(options: WorkerOptions<Row>) {
    this.#options = options
    this.#settings = options.settings
    this.name = options.name
    this.table = tableName(options.store.table)
    const settings = (): WorkerSettings => this.#settings
    const gate = new PauseGate((change) => this.#pauseChanged(change), options.clock)
    const lostRows = new LostRows<Row>({ ...options, onGivenBack: () => this.#cycle.wake() })
    const inFlight = new RowsInFlight<Row>({
      ...options,
      giveBack: (row, hasRun) => lostRows.add(row, hasRun),
    })
    const onClaimUnanswered = (leaseMs: number): void => lostRows.claimUnanswered(leaseMs)
    const cycle = new WorkerCycle<Row>({ ...options, settings, gate, inFlight, onClaimUnanswered })
    const completion = new Completion<Row>({ ...options, inFlight, cycle, gate })
    const context = { ...options, inFlight }
    const shared = { ...options, table: this.table, settings, gate, inFlight, cycle }
    this.#slots = new Slots<Row>({
      ...shared,
      limits: options.limits,
      completion,
      // Not an async function, which would allocate two more promises for every row.
      run: (row) => options.handle(new RowContext(row, context)),
    })
    this.#watch = new LeaseWatch<Row>({ ...shared, slots: this.#slots })
    this.#gate = gate
    this.#inFlight = inFlight
    this.#lostRows = lostRows
    this.#cycle = cycle
  }

  /** The number of rows in flight. */
  get inFlight(): number {
    return this.#slots.running + this.#slots.ready + this.#cycle.unsettled + this.#lostRows.size
  }

  /** No statement has succeeded since the last one failed. */
  get isFailing(): boolean {
    return this.#cycle.isFailing
  }

  /** Why it does not claim at the moment. A worker that is stopping is not paused. */
  get pauses(): readonly Pause[] {
    return [...this.#pauses.values()].filter(({ reason }) => reason !== 'stopping')
  }

  get settings(): WorkerSettings {
    return this.#settings
  }

  start(): void {
    if (this.#settings.paused) this.#gate.shut('operator')
    this.#cycle.start(this.#slots)
    this.#watch.start()
  }

  /** Stops claiming and starting, and releases what has not been started. */
  pause(reason: PauseReason = 'operator', forMs?: number, error?: unknown): void {
    this.#gate.shut(reason, forMs, error)
  }

  resume(reason: PauseReason = 'operator'): void {
    this.#gate.openFor(reason)
  }

  /** Something may have become claimable, and so many workers of this name, in all processes, are told of it. */
  wake(workers = 1): void {
    this.#options.groups?.wake?.()
    this.#cycle.wake(workers)
  }

  /**
   * Resolves when no row is in flight, and a claim that was sent after this call found none. While the worker is paused it
   * does not claim, and this waits. For tests: what is due has been processed.
   */
  async idle(): Promise<void> {
    for (;;) {
      await this.#until(() => this.inFlight === 0 && !this.#cycle.isClaiming, Number.POSITIVE_INFINITY)
      const before = this.#cycle.emptyScans
      this.wake()
      const isEmpty = (): boolean => this.#cycle.emptyScans > before
      await this.#until(() => isEmpty() || this.inFlight > 0, Number.POSITIVE_INFINITY)
      if (isEmpty() && this.inFlight === 0) return
    }
  }

  /** Applies settings that have been checked as a whole. */
  change(settings: WorkerSettings): void {
    const wasPaused = this.#settings.paused
    this.#settings = settings
    // A pause for another reason is not ended by a change of something else.
    if (settings.paused && !wasPaused) this.#gate.shut('operator')
    if (!settings.paused && wasPaused) this.#gate.openFor('operator')
    this.#slots.fill()
    this.#cycle.notify()
  }

  /** The heartbeat starts anew. */
  heartbeatStarted(): void {
    this.#inFlight.holdAgain()
  }

  /** The ids of all rows that it may still have leased. */
  get ids(): readonly string[] {
    return [...this.#inFlight.ids, ...this.#lostRows.ids]
  }

  /** The ids of rows that it takes back itself, because their handlers hang. */
  get takesBack(): readonly string[] {
    return this.#watch.takesBack
  }

  /** The heartbeat found that a row is no longer ours, or no longer known to be. */
  lost(row: HeldRow, reason: LossReason): void {
    this.#watch.lost(row, reason)
  }

  /**
   * Stops claiming; releases what was never started; lets handlers finish until the timeout; then tells the rest to
   * stop, settles or releases those that do, and leaves the others to the reaper. Not clean: some rows are still leased.
   * Ends by a moment that is fixed when it begins.
   */
  async stop(): Promise<{ readonly clean: boolean }> {
    const { handlers, settlements } = stopDeadlines(this.#now(), this.#settings)
    this.#gate.shut('stopping')
    this.#cycle.hurry()
    await this.#until(() => this.#slots.running === 0, handlers)
    this.#watch.abortAll('stopping')
    const isEmpty = (): boolean => this.inFlight === 0 && !this.#cycle.isClaiming
    await this.#until(isEmpty, settlements)
    this.#watch.close()
    this.#lostRows.close()
    this.#slots.close()
    this.#gate.close()
    // A statement that is not answered is given up by the pool, not waited for here.
    await within(Math.max(0, settlements - this.#now()), this.#cycle.stop())
    return { clean: isEmpty() && this.#slots.abandoned === 0 }
  }

  async #until(isReached: () => boolean, deadline: number): Promise<void> {
    while (!isReached() && this.#now() < deadline) await this.#cycle.waitForChange(deadline - this.#now())
  }

  #pauseChanged({ reason, paused, forMs, ...cause }: PauseChange): void {
    const { events, store } = this.#options
    const of = { worker: store.owner, table: this.table }
    if (paused) {
      this.#pauses.set(reason, this.#describePause(reason, cause.error))
      events.emit('paused', { ...of, reason, forMs, ...cause })
      this.#cycle.release(this.#slots.takeReady())
    } else {
      this.#pauses.delete(reason)
      const others = [...this.#pauses.keys()]
      events.emit('resumed', { ...of, reason, ...(others.length === 0 ? {} : { stillPausedFor: others }) })
      this.#slots.fill()
      this.#cycle.wake()
    }
  }

  #describePause(reason: PauseReason, error: unknown): Pause {
    const pause = { worker: this.name, table: this.table, reason, since: new Date().toISOString() }
    if (error === undefined) return pause
    // One character that PostgreSQL cannot store would keep the process out of the registry.
    const text = withoutUrlPasswords(messageOf(error)).slice(0, MAX_PAUSE_ERROR_LENGTH)
    return { ...pause, error: text.toWellFormed().replaceAll('\0', '\uFFFD') }
  }

  #now(): number {
    return this.#options.clock.monotonicNow()
  }
}
