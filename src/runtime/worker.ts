import { type Clock } from '../clock.ts'
import { type Claim, type LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { within } from '../postgres/deadline.ts'
import { type RetryPolicy } from './back-off.ts'
import { RowContext, type HandlerContext, type LogSource } from './context.ts'
import { type Events, type LossReason, type PauseReason } from './events.ts'
import { Exchange } from './exchange.ts'
import { Gate, type GateChange } from './gate.ts'
import { abortHandling, type AbortReason, type Handling, handlingsOf } from './handling.ts'
import { type HeldRows } from './held-rows.ts'
import { type RowToRenew } from './lifeline-messages.ts'
import { type Lanes } from './lanes.ts'
import { createLimiter, type Limits } from './limits.ts'
import { type Outcome } from './outcome.ts'
import { Prefetch } from './prefetch.ts'
import { LONGEST_HOLD } from './renewal.ts'
import { type WorkerSettings } from './settings.ts'
import { Slots } from './slots.ts'
import {
  agrees,
  byPolicy,
  DONE,
  type HandlerResult,
  RETURNED,
  type Settle,
  type Verdict,
  verdictOn,
} from './verdict.ts'

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

/** How often leases are looked at for trust that has run out; a fraction of a short lease. */
const SWEEP_MS = 250

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
  readonly #gate: Gate
  readonly #prefetch: Prefetch
  #settings: WorkerSettings
  #sweeper: NodeJS.Timeout | undefined
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
    this.#sweeper = setInterval(
      () => this.#sweep(),
      Math.max(10, Math.min(SWEEP_MS, this.#settings.leaseMs / 20)),
    )
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
  lost({ index, generation }: RowToRenew, reason: LossReason): void {
    for (const handling of this.#slots) {
      if (handling.index === index && handling.generation === generation) this.#lose(handling, reason)
    }
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
    for (const handling of this.#slots) this.#abort(handling, 'stopping')
    const isEmpty = (): boolean => this.inFlight === 0 && !this.#exchange.isLooking
    await this.#until(isEmpty, Math.max(deadline, this.#now()) + LAST_MOMENT_MS)
    clearInterval(this.#sweeper)
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
      events.emit('started', { ...this.#ref(handling), attempt: handling.attempt })
  }

  #ended(handling: Handling<Row>, result: HandlerResult): void {
    this.#leftLane(handling)
    const { settledAs, lost } = handling
    const now = this.#now()
    if (settledAs !== undefined && agrees(result, settledAs)) {
      this.#settledByItself(handling, settledAs)
    } else {
      const verdict = this.#verdictOn(handling, result)
      if (lost !== undefined || !this.#options.held.isTrusted(handling, now)) {
        const outcome = verdict.verdict === 'settle' ? verdict.outcome.outcome : 'release'
        this.#gone(handling, { fencedOffAs: outcome })
      } else if (verdict.verdict === 'settle') {
        if (verdict.failure !== undefined) this.#failed(handling, verdict)
        this.#exchange.settle(handling, verdict.outcome, now)
      } else {
        this.#saturated(handling, verdict.saturatedForMs, result)
      }
    }
    this.#exchange.notify()
  }

  #verdictOn(handling: Handling<Row>, result: HandlerResult): Verdict {
    if (result === RETURNED) return DONE
    const { retry: policy, random } = this.#options
    const cutShort = this.#stopping && handling.abort?.signal.aborted === true
    return verdictOn(result, { attempt: handling.attempt, policy, random, cutShort })
  }

  /** In a transaction of its handler's. */
  #settledByItself(handling: Handling<Row>, { outcome }: Outcome): void {
    this.#gone(handling, undefined)
    // The transaction has ended: whoever waited behind the row can be seen now.
    if (handling.left !== undefined) {
      this.#options.store.lookAgain(handling.left)
      this.#exchange.advanced()
    }
    const of = { worker: this.#worker, table: this.table }
    this.#options.events.emit('settled', { ...of, outcome, ids: [handling.lease.id], durationMs: 0 })
  }

  #failed(handling: Handling<Row>, { outcome: { outcome }, failure: error }: Settle): void {
    const { attempt } = handling
    this.#options.events.emit('failed', { ...this.#ref(handling), attempt, outcome, error })
  }

  /** Given back, because downstream has no room, or because the handler was cut short. */
  #saturated(handling: Handling<Row>, forMs: number | undefined, result: HandlerResult): void {
    if (forMs !== undefined)
      this.#gate.shut('saturated', forMs, result.ended === 'threw' ? result.error : undefined)
    this.#exchange.giveBack([handling], forMs)
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

  /** Leases whose time of trust has run out, whoever was to renew them. */
  #sweep(): void {
    const now = this.#now()
    const { leaseMs } = this.#settings
    for (const handling of this.#slots) {
      if (this.#options.held.isTrusted(handling, now)) continue
      // The last lease of the longest hold is not renewed again, see renewal.ts.
      this.#lose(handling, now - handling.claimedAt >= (LONGEST_HOLD - 1) * leaseMs ? 'tooLong' : 'untrusted')
    }
    // What still waits could have gone to another worker meanwhile, and waiting must not cost it an attempt. Only now:
    // for a lease that can no longer be trusted nothing is written, not even this.
    this.#exchange.giveBack(this.#slots.takeReadyBefore(now - leaseMs / 2))
  }

  #lose(handling: Handling<Row>, reason: LossReason): void {
    if (handling.lost !== undefined) return
    // It was given up by the handler's own transaction, not taken; whether that commits is up to the handler.
    if (handling.settledAs !== undefined && (reason === 'taken' || reason === 'untrusted')) return
    handling.lost = reason
    this.#options.held.lose(handling)
    this.#options.events.emit('lost', { ...this.#ref(handling), reason })
    if (this.#slots.abandon(handling)) this.#abort(handling, reason)
    else this.#gone(handling, undefined)
    if (this.#gate.open && this.#slots.isClogged) this.#clogged()
    this.#slots.fill()
    this.#exchange.notify()
  }

  /** Handlers that ignore their signal have all the slots. Rows that wait behind them are better off elsewhere. */
  #clogged(): void {
    const error = new Error(`${this.#slots.abandoned} handlers did not stop when their leases were lost`)
    const what = `claiming rows of ${this.table}, which rests until handlers come back`
    this.#options.events.emit('trouble', { worker: this.#worker, what, error })
    this.#exchange.giveBack(this.#slots.takeReady())
  }

  #abort(handling: Handling<Row>, reason: AbortReason): void {
    abortHandling(handling, reason)
    this.#options.events.emit('aborted', { ...this.#ref(handling), reason })
  }

  #gone(handling: Handling<Row>, how: { readonly fencedOffAs: string } | undefined): void {
    this.#options.held.free(handling)
    // One that was lost while its handler runs is on its way still.
    if (handling.state === 'idle') this.#leftLane(handling)
    if (how !== undefined)
      this.#options.events.emit('fencedOff', { ...this.#ref(handling), outcome: how.fencedOffAs })
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

  #ref({ lease }: Handling<Row>): { worker: string; table: string; id: string; token: bigint } {
    return { worker: this.#worker, table: this.table, id: lease.id, token: lease.token }
  }
}

function canDelay(release: Readonly<Record<string, string>>): boolean {
  return Object.values(release).some((expression) => expression.includes('$delay_ms'))
}
