import type { Clock } from '../clock.ts'
import type { LeaseStore } from '../lease/store.ts'
import type { Events, LossReason } from './events.ts'
import type { Gate } from './gate.ts'
import { abortHandling, type AbortReason, type Handling, refTo } from './handling.ts'
import type { HeldRow, HeldRows } from './held-rows.ts'
import { LONGEST_HOLD } from './renewal.ts'
import type { SettleAndClaim } from './settle-and-claim.ts'
import type { WorkerSettings } from './settings.ts'
import type { Slots } from './slots.ts'

export interface LeaseWatchOptions<Row extends object> {
  readonly table: string
  readonly store: Pick<LeaseStore<Row>, 'owner'>
  readonly clock: Clock
  readonly events: Events
  readonly held: HeldRows
  readonly slots: Slots<Row>
  readonly statements: SettleAndClaim<Row>
  readonly settings: () => WorkerSettings
  /** Whether rows may be claimed and started. */
  readonly gate: Gate
  /** The row is out of our hands. */
  readonly onGone: (handling: Handling<Row>) => void
  /** Its lease is lost, whether its handler comes back or not. */
  readonly onLost: (handling: Handling<Row>) => void
}

/** How often leases are looked at for trust that has run out; a fraction of a short lease. */
const SWEEP_MS = 250

/** Watches over the leases of the rows in hand, and ends the processing of those that are lost. */
export class LeaseWatch<Row extends object> {
  readonly #options: LeaseWatchOptions<Row>
  #sweeper: NodeJS.Timeout | undefined

  constructor(options: LeaseWatchOptions<Row>) {
    this.#options = options
  }

  start(): void {
    const { leaseMs } = this.#options.settings()
    this.#sweeper = setInterval(() => this.#sweep(), Math.max(10, Math.min(SWEEP_MS, leaseMs / 20)))
  }

  close(): void {
    clearInterval(this.#sweeper)
  }

  /** The renewing side found that a row is no longer ours, or no longer known to be. */
  lost({ index, generation }: HeldRow, reason: LossReason): void {
    for (const handling of this.#options.slots) {
      if (handling.index === index && handling.generation === generation) this.#lose(handling, reason)
    }
  }

  /** Tells the handlers of all rows in hand to stop. */
  abortAll(reason: AbortReason): void {
    for (const handling of this.#options.slots) this.#abort(handling, reason)
  }

  /** Leases whose time of trust has run out, whoever was to renew them. */
  #sweep(): void {
    const { clock, held, slots, statements, settings } = this.#options
    const now = clock.monotonicNow()
    const { leaseMs } = settings()
    for (const handling of slots) {
      if (held.isTrusted(handling, now)) continue
      // The last lease of the longest hold is not renewed again, see renewal.ts.
      this.#lose(handling, now - handling.claimedAt >= (LONGEST_HOLD - 1) * leaseMs ? 'tooLong' : 'untrusted')
    }
    // What still waits could have gone to another worker meanwhile, and waiting must not cost it an attempt. Only now:
    // for a lease that can no longer be trusted nothing is written, not even this.
    statements.release(slots.takeReadyBefore(now - leaseMs / 2))
  }

  #lose(handling: Handling<Row>, reason: LossReason): void {
    if (handling.lost !== undefined) return
    // It was given up by the handler's own transaction, not taken; whether that commits is up to the handler.
    if (handling.settledAs !== undefined && (reason === 'taken' || reason === 'untrusted')) return
    const { table, events, held, slots, statements, gate, onGone, onLost } = this.#options
    handling.lost = reason
    held.lose(handling)
    onLost(handling)
    events.emit('lost', { ...refTo(handling, table), reason })
    if (slots.abandon(handling)) this.#abort(handling, reason)
    else onGone(handling)
    if (gate.open && slots.isClogged) this.#clogged()
    slots.fill()
    statements.notify()
  }

  /** Handlers that ignore their signal have all the slots. Rows that wait behind them are better off elsewhere. */
  #clogged(): void {
    const { table, store, events, slots, statements } = this.#options
    const error = new Error(`${slots.abandoned} handlers did not stop when their leases were lost`)
    const what = `claiming rows of ${table}, which rests until handlers come back`
    events.emit('trouble', { worker: store.owner, what, error })
    statements.release(slots.takeReady())
  }

  #abort(handling: Handling<Row>, reason: AbortReason): void {
    abortHandling(handling, reason)
    this.#options.events.emit('aborted', { ...refTo(handling, this.#options.table), reason })
  }
}
