import type { Clock } from '../clock.ts'
import type { Claim, LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { within } from '../postgres/deadline.ts'
import { RowContext, type HandlerContext, type LogSource } from './context.ts'
import type { Events, LossReason, PauseReason } from './events.ts'
import { Ending } from './ending.ts'
import { Gate, type GateChange } from './gate.ts'
import { type Handling, handlingsOf, refTo } from './handling.ts'
import type { HeldRow, HeldRows } from './held-rows.ts'
import { LeaseWatch } from './lease-watch.ts'
import type { RowToRenew } from './lifeline-messages.ts'
import type { Groups } from './groups.ts'
import { createLimiter, type Limits } from './limits.ts'
import type { Outcome } from './outcome.ts'
import { Prefetch } from './prefetch.ts'
import type { WorkerSettings } from './settings.ts'
import { SettleAndClaim } from './settle-and-claim.ts'
import { Slots } from './slots.ts'
import type { SuspectSlot } from './suspect-slot.ts'
import { byPolicy, type Circumstances, type HandlerResult } from './verdict.ts'

export type Handler<Row> = (context: HandlerContext<Row>) => Promise<Outcome | void>

export interface WorkerOptions<Row extends object> {
  readonly name: string
  readonly store: LeaseStore<Row>
  readonly handle: Handler<Row>
  readonly settings: WorkerSettings
  readonly limits: Limits<Row> | undefined
  readonly groups?: Groups<Row> | undefined
  /** Shared by all workers of the process. */
  readonly suspects: SuspectSlot
  readonly events: Events
  readonly log: LogSource
  readonly clock: Clock
  readonly random: () => number
  /** Rows in hand, shared with whoever renews them, and how that one learns of new rows. */
  readonly held: HeldRows
  readonly hold: (rows: readonly RowToRenew[]) => void
  /** Wake-ups arrive: an idle worker need not poll as often. */
  readonly isWoken: () => boolean
}

/** How long handlers that were told to stop may take to come back, and their rows to be settled. */
const LAST_MOMENT_MS = 1_000

/**
 * Works off one table: claim → start → watch → settle. `SettleAndClaim` sends the statements, the slots run the handlers,
 * and between them is a bounded number of rows: slots plus prefetch, from the claim until the settlement is confirmed.
 */
export class Worker<Row extends object = Record<string, unknown>> {
  readonly name: string
  readonly table: string
  readonly #options: WorkerOptions<Row>
  readonly #slots: Slots<Row>
  readonly #statements: SettleAndClaim<Row>
  readonly #ending: Ending<Row>
  readonly #watch: LeaseWatch<Row>
  readonly #gate: Gate
  readonly #prefetch: Prefetch
  #settings: WorkerSettings
  #stopping = false
  #bytesInFlight = 0

  constructor(options: WorkerOptions<Row>) {
    const { store, clock, random, events, held, limits, isWoken } = options
    this.#options = options
    this.#settings = options.settings
    this.name = options.name
    this.table = tableName(store.table)
    this.#prefetch = new Prefetch(options.settings.concurrency)
    this.#gate = new Gate((change) => this.#gateChanged(change), clock)
    const parts = {
      store,
      held,
      log: options.log,
      now: () => clock.monotonicNow(),
      byPolicy: (outcome: Outcome, handling: Handling<Row>) =>
        byPolicy(outcome, this.#circumstances(handling)),
    }
    this.#slots = new Slots<Row>({
      concurrency: () => this.#settings.concurrency,
      mayStart: () => this.#gate.open && !this.#statements.isStalled,
      places: () => this.#places(),
      now: parts.now,
      isTrusted: (handling, now) => held.isTrusted(handling, now),
      // Without `async`, which would make two more promises for every row.
      handle: (handling) => options.handle(new RowContext(handling, parts)),
      limits: limits === undefined ? undefined : { key: limits.key, limiter: createLimiter(limits, clock) },
      onStart: (handling, now) => this.#started(handling, now),
      onEnd: (handling, result) => this.#ended(handling, result),
      onTrouble: (handling, error) => {
        events.emit('trouble', {
          worker: store.owner,
          what: `row ${handling.lease.id} of ${this.table}`,
          error,
        })
        this.#gone(handling, undefined)
      },
      onCrowded: (handlings, forMs) => {
        this.#statements.release(handlings, forMs)
        // A table that cannot make them wait would hand them out at once.
        if (!canDelay(store.table.writes.release)) this.#statements.rest(forMs)
      },
    })
    this.#statements = new SettleAndClaim<Row>({
      store,
      clock,
      random,
      events,
      isWoken,
      settings: () => this.#settings,
      room: () => this.#room(),
      bytes: () =>
        store.table.bytes === undefined ? Infinity : this.#settings.prefetchBytes - this.#bytesInFlight,
      isQuiet: () => this.#slots.running === 0 && this.#slots.ready === 0,
      isTrusted: (handling, now) => held.isTrusted(handling, now),
      onClaimed: (claim, sentAt) => this.#claimed(claim, sentAt),
      onAnswer: () => this.#slots.fill(),
      onGone: (handling, how) => this.#gone(handling, how),
      groups: options.groups,
      suspects: options.suspects,
    })
    const known = {
      ...options,
      table: this.table,
      slots: this.#slots,
      statements: this.#statements,
      gate: this.#gate,
      settings: () => this.#settings,
      isStopping: () => this.#stopping,
      circumstancesOf: (handling: Handling<Row>) => this.#circumstances(handling),
      onGone: (handling: Handling<Row>, how?: { readonly fencedOffAs: string }) => this.#gone(handling, how),
      onLost: (handling: Handling<Row>) => this.#freeSuspectSlot(handling),
    }
    this.#ending = new Ending<Row>(known)
    this.#watch = new LeaseWatch<Row>(known)
  }

  /** Rows in hand. */
  get inFlight(): number {
    return this.#slots.running + this.#slots.ready + this.#statements.size
  }

  get settings(): WorkerSettings {
    return this.#settings
  }

  start(): void {
    if (this.#settings.paused) this.#gate.shut('operator')
    this.#statements.start()
    this.#watch.start()
  }

  /** Stops claiming and starting, and gives back what has not been started. */
  pause(reason: PauseReason = 'operator', forMs?: number, error?: unknown): void {
    this.#gate.shut(reason, forMs, error)
  }

  resume(reason: PauseReason = 'operator'): void {
    this.#gate.openFor(reason)
  }

  /** Something may have become claimable. */
  wake(): void {
    this.#options.groups?.wake?.()
    this.#statements.wake()
  }

  /** Settings that have been checked as a whole. */
  change(settings: WorkerSettings): void {
    const wasPaused = this.#settings.paused
    this.#settings = settings
    // A pause that was asked for otherwise is not ended by a change of something else.
    if (settings.paused && !wasPaused) this.#gate.shut('operator')
    if (!settings.paused && wasPaused) this.#gate.openFor('operator')
    this.#slots.fill()
    this.#statements.notify()
  }

  /** All rows that need renewal, for a lifeline that starts anew. */
  rowsToRenew(): RowToRenew[] {
    return [...this.#slots]
  }

  /** The renewing side found that a row is no longer ours, or no longer known to be. */
  lost(row: HeldRow, reason: LossReason): void {
    this.#watch.lost(row, reason)
  }

  /**
   * Stops claiming; gives back what was never started; lets handlers finish until the timeout; then tells the rest to
   * stop, settles or gives back those that do, and leaves the others to the reaper. Not clean: some were left.
   */
  async stop(): Promise<{ readonly clean: boolean }> {
    this.#stopping = true
    this.#gate.shut('stopping')
    this.#statements.hurry()
    const deadline = this.#now() + this.#settings.shutdownTimeoutMs
    await this.#until(() => this.#slots.running === 0, deadline)
    this.#watch.abortAll('stopping')
    const isEmpty = (): boolean => this.inFlight === 0 && !this.#statements.isClaiming
    await this.#until(isEmpty, Math.max(deadline, this.#now()) + LAST_MOMENT_MS)
    this.#watch.close()
    this.#slots.close()
    this.#gate.close()
    // A statement that does not come back is given up by the pool, not waited for here.
    await within(LAST_MOMENT_MS, this.#statements.stop())
    return { clean: isEmpty() && this.#slots.abandoned === 0 }
  }

  async #until(reached: () => boolean, deadline: number): Promise<void> {
    while (!reached() && this.#now() < deadline) await this.#statements.change(deadline - this.#now())
  }

  /** How many rows there is room for, those that are being claimed or settled not counted. */
  #room(): number {
    if (!this.#gate.open || this.#slots.isClogged) return 0
    const { concurrency, prefetch } = this.#settings
    const ahead = this.#prefetch.within(prefetch)
    const { ready, running } = this.#slots
    // With enough waiting for a slot there is no hurry, and a larger claim later is cheaper than two small ones.
    if (ahead > 1 && ready > ahead / 2 && running >= concurrency) return 0
    // Slots whose handlers do not come back are given away once; then the worker is clogged, and rests.
    return this.#places() - ready - running
  }

  /** For how many rows there is room at all. */
  #places(): number {
    const { concurrency, prefetch } = this.#settings
    return concurrency + this.#prefetch.within(prefetch)
  }

  #claimed(claim: Claim<Row>, sentAt: number): void {
    if (claim.more && this.#slots.ready === 0) this.#prefetch.ranDry(this.#settings.prefetch)
    if (claim.claimed.length === 0) return
    const { store, held, hold } = this.#options
    const attempts = store.table.attempts?.column
    const handlings = handlingsOf(claim, { attempts, held, claimedAt: sentAt })
    this.#bytesInFlight += claim.bytes ?? 0
    // The renewal starts no later than the handler (WH-FR-001-AC1).
    hold(handlings)
    if (!this.#gate.open) {
      this.#statements.release(handlings)
      return
    }
    this.#slots.add(handlings)
    this.#slots.fill()
  }

  #started(handling: Handling<Row>, now: number): void {
    this.#prefetch.waited(now - handling.claimedAt)
    const { events } = this.#options
    if (events.wanted('started'))
      events.emit('started', { ...refTo(handling, this.table), attempt: handling.attempt })
  }

  #ended(handling: Handling<Row>, result: HandlerResult): void {
    this.#leaveGroup(handling)
    this.#ending.carryOut(handling, result, this.#now())
    this.#statements.notify()
  }

  #gateChanged({ reason, paused, forMs, ...cause }: GateChange): void {
    const { events } = this.#options
    const of = { worker: this.#worker, table: this.table }
    if (paused) {
      events.emit('paused', { ...of, reason, forMs, ...cause })
      this.#statements.release(this.#slots.takeReady())
    } else {
      events.emit('resumed', { ...of, reason })
      this.#slots.fill()
      this.#statements.wake()
    }
  }

  #gone(handling: Handling<Row>, how?: { readonly fencedOffAs: string }): void {
    // Told twice where a handler returns after its row was lost.
    if (this.#options.held.free(handling)) this.#bytesInFlight -= handling.bytes
    this.#freeSuspectSlot(handling)
    // A row that was lost while its handler runs still takes up room in its group.
    if (handling.state === 'idle') this.#leaveGroup(handling)
    if (how !== undefined)
      this.#options.events.emit('fencedOff', { ...refTo(handling, this.table), outcome: how.fencedOffAs })
  }

  /** Also when its handler ignores that the row was lost: one that never comes back must not stop all other suspects. */
  #freeSuspectSlot(handling: Handling<Row>): void {
    if (!handling.hasSuspectSlot) return
    handling.hasSuspectSlot = false
    this.#options.suspects.free()
  }

  /** Told once, when the handler has come back or the row was never started. */
  #leaveGroup(handling: Handling<Row>): void {
    if (this.#options.groups === undefined || handling.hasLeftGroup) return
    handling.hasLeftGroup = true
    this.#options.groups.ended(handling.row)
  }

  /** What decides between another attempt and the end, from the table's one declaration. */
  #circumstances({ row, attempt }: Handling<Row>): Omit<Circumstances, 'cutShort'> {
    const { store, random } = this.#options
    const max = store.table.attempts?.max
    const stored: unknown = typeof max === 'string' ? Reflect.get(row, max) : max
    const maxAttempts = stored === undefined || stored === null ? undefined : Number(stored)
    return { attempt, maxAttempts, policy: store.table.retry, random }
  }

  get #worker(): string {
    return this.#options.store.owner
  }

  #now(): number {
    return this.#options.clock.monotonicNow()
  }
}

function canDelay(release: Readonly<Record<string, string>>): boolean {
  return Object.values(release).some((expression) => expression.includes('$delay_ms'))
}
