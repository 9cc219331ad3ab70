import type { Clock } from '../clock.ts'
import type { Claim, LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { within } from '../postgres/deadline.ts'
import type { RetryPolicy } from './back-off.ts'
import { RowContext, type HandlerContext, type LogSource } from './context.ts'
import type { Events, LossReason, PauseReason } from './events.ts'
import { Ending } from './ending.ts'
import { Exchange } from './exchange.ts'
import { Gate, type GateChange } from './gate.ts'
import { type Handling, handlingsOf, refTo } from './handling.ts'
import type { HeldRow, HeldRows } from './held-rows.ts'
import { LeaseWatch } from './lease-watch.ts'
import type { RowToRenew } from './lifeline-messages.ts'
import type { Lanes } from './lanes.ts'
import { createLimiter, type Limits } from './limits.ts'
import type { Outcome } from './outcome.ts'
import { Prefetch } from './prefetch.ts'
import type { WorkerSettings } from './settings.ts'
import { Slots } from './slots.ts'
import { byPolicy, type HandlerResult } from './verdict.ts'

export type Handler<Row> = (context: HandlerContext<Row>) => Promise<Outcome | void>

export interface WorkerOptions<Row extends object> {
  readonly name: string
  readonly store: LeaseStore<Row>
  readonly handle: Handler<Row>
  readonly settings: WorkerSettings
  readonly retry: RetryPolicy
  readonly limits: Limits<Row> | undefined
  readonly lanes?: Lanes<Row> | undefined
  readonly events: Events
  readonly log: LogSource
  readonly clock: Clock
  readonly random: () => number
  /** Rows in hand, shared with whoever renews them, and how that one learns of new rows. */
  readonly held: HeldRows
  readonly hold: (rows: readonly RowToRenew[]) => void
  /** Rows can be claimed that had waited, and this worker has no room for them: others may have. */
  readonly onAdvanced: () => void
  /** Wake-ups arrive: an idle worker need not look as often. */
  readonly isWoken: () => boolean
}

/** How long handlers that were told to stop may take to come back, and their rows to be settled. */
const LAST_MOMENT_MS = 1_000

/**
 * Works off one table: claim → start → watch → settle. The exchange claims and settles, the slots run the handlers,
 * and between them is a bounded number of rows: slots plus prefetch, from the claim until the settlement is confirmed.
 */
export class Worker<Row extends object = Record<string, unknown>> {
  readonly name: string
  readonly table: string
  readonly #options: WorkerOptions<Row>
  readonly #slots: Slots<Row>
  readonly #exchange: Exchange<Row>
  readonly #ending: Ending<Row>
  readonly #watch: LeaseWatch<Row>
  readonly #gate: Gate
  readonly #prefetch: Prefetch
  #settings: WorkerSettings
  #stopping = false

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
      byPolicy: (outcome: Outcome, attempt: number) =>
        byPolicy(outcome, { attempt, policy: options.retry, random }),
    }
    this.#slots = new Slots<Row>({
      concurrency: () => (this.#gate.open ? this.#settings.concurrency : 0),
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
        this.#exchange.giveBack(handlings, forMs)
        // A table that cannot make them wait would give them out again at once.
        if (!canDelay(store.table.writes.release)) this.#exchange.rest(forMs)
      },
    })
    this.#exchange = new Exchange<Row>({
      store,
      clock,
      random,
      events,
      isWoken,
      settings: () => this.#settings,
      room: () => this.#room(),
      isQuiet: () => this.#slots.running === 0 && this.#slots.ready === 0,
      isTrusted: (handling, now) => held.isTrusted(handling, now),
      onClaimed: (claim, look) => this.#claimed(claim, look),
      onAdvanced: () => options.onAdvanced(),
      onGone: (handling, how) => this.#gone(handling, how),
      lanes: options.lanes,
    })
    const known = {
      ...options,
      table: this.table,
      slots: this.#slots,
      exchange: this.#exchange,
      gate: this.#gate,
      settings: () => this.#settings,
      isStopping: () => this.#stopping,
      onGone: (handling: Handling<Row>, how?: { readonly fencedOffAs: string }) => this.#gone(handling, how),
    }
    this.#ending = new Ending<Row>(known)
    this.#watch = new LeaseWatch<Row>(known)
  }

  /** Rows in hand. */
  get inFlight(): number {
    return this.#slots.running + this.#slots.ready + this.#exchange.size
  }

  get settings(): WorkerSettings {
    return this.#settings
  }

  start(): void {
    if (this.#settings.paused) this.#gate.shut('operator')
    this.#exchange.start()
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
    this.#options.lanes?.wake?.()
    this.#exchange.wake()
  }

  /** Settings that have been checked as a whole. */
  change(settings: WorkerSettings): void {
    const wasPaused = this.#settings.paused
    this.#settings = settings
    // A pause that was asked for otherwise is not ended by a change of something else.
    if (settings.paused && !wasPaused) this.#gate.shut('operator')
    if (!settings.paused && wasPaused) this.#gate.openFor('operator')
    this.#slots.fill()
    this.#exchange.notify()
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
    this.#exchange.hurry()
    const deadline = this.#now() + this.#settings.shutdownTimeoutMs
    await this.#until(() => this.#slots.running === 0, deadline)
    this.#watch.abortAll('stopping')
    const isEmpty = (): boolean => this.inFlight === 0 && !this.#exchange.isLooking
    await this.#until(isEmpty, Math.max(deadline, this.#now()) + LAST_MOMENT_MS)
    this.#watch.close()
    this.#slots.close()
    this.#gate.close()
    // A statement that does not come back is given up by the pool, not waited for here.
    await within(LAST_MOMENT_MS, this.#exchange.stop())
    return { clean: isEmpty() && this.#slots.abandoned === 0 }
  }

  async #until(reached: () => boolean, deadline: number): Promise<void> {
    while (!reached() && this.#now() < deadline) await this.#exchange.news(deadline - this.#now())
  }

  /** How many rows there is room for, those on their way through the exchange not counted. */
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

  #claimed(claim: Claim<Row>, { full, sentAt }: { readonly full: boolean; readonly sentAt: number }): void {
    if (full && this.#slots.ready === 0) this.#prefetch.ranDry(this.#settings.prefetch)
    if (claim.claimed.length === 0) return
    const { store, held, hold } = this.#options
    const handlings = handlingsOf(claim, { attempts: store.table.attempts, held, claimedAt: sentAt })
    // The renewal starts no later than the handler (WH-FR-001-AC1).
    hold(handlings)
    if (!this.#gate.open) {
      this.#exchange.giveBack(handlings)
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
    this.#leftLane(handling)
    this.#ending.carryOut(handling, result, this.#now())
    this.#exchange.notify()
  }

  #gateChanged({ reason, paused, forMs, ...cause }: GateChange): void {
    const { events } = this.#options
    const of = { worker: this.#worker, table: this.table }
    if (paused) {
      events.emit('paused', { ...of, reason, forMs, ...cause })
      this.#exchange.giveBack(this.#slots.takeReady())
    } else {
      events.emit('resumed', { ...of, reason })
      this.#slots.fill()
      this.#exchange.wake()
    }
  }

  #gone(handling: Handling<Row>, how?: { readonly fencedOffAs: string }): void {
    this.#options.held.free(handling)
    // One that was lost while its handler runs is on its way still.
    if (handling.state === 'idle') this.#leftLane(handling)
    if (how !== undefined)
      this.#options.events.emit('fencedOff', { ...refTo(handling, this.table), outcome: how.fencedOffAs })
  }

  /** Told once, when the handler has come back or the row was never started. */
  #leftLane(handling: Handling<Row>): void {
    if (this.#options.lanes === undefined || handling.leftLane) return
    handling.leftLane = true
    this.#options.lanes.ended(handling.row)
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
