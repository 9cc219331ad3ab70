import type { Clock } from '../../clock.ts'
import { trustMargin } from '../../lease/lease.ts'
import type { LeaseStore } from '../../lease/store.ts'
import type { PauseGate } from '../claiming/pausing.ts'
import { type Events, type LossReason, reportError } from '../events.ts'
import { abort, type AbortReason, refTo, type RowInFlight, type RowsInFlight } from '../rows-in-flight.ts'
import type { WorkerCycle } from '../cycle.ts'
import type { WorkerSettings } from '../settings.ts'
import type { Slots } from '../slots/slots.ts'
import type { HeldRow } from './held-rows.ts'

export interface LeaseWatchOptions<Row extends object> {
  readonly table: string
  readonly store: Pick<LeaseStore<Row>, 'owner' | 'reap'>
  readonly clock: Clock
  readonly events: Events
  readonly settings: () => WorkerSettings
  readonly gate: Pick<PauseGate, 'open'>
  readonly inFlight: RowsInFlight<Row>
  readonly slots: Slots<Row>
  readonly cycle: Pick<WorkerCycle<Row>, 'release' | 'notify'>
}

/** Leases are checked this often within the margin between the end of their trust and their end in the database. */
const CHECKS_PER_MARGIN = 4

/** How often a process tries to take back a row whose handler hangs, before it is left to the reapers. */
const TAKE_BACK_ATTEMPTS = 5
const TAKE_BACK_RETRY_MS = 250

/** Ends the processing of rows whose lease is lost, or can no longer be trusted. */
export class LeaseWatch<Row extends object> {
  readonly #options: LeaseWatchOptions<Row>
  #timer: NodeJS.Timeout | undefined
  /** Rows whose handlers hang, until this process has taken them back. */
  readonly #takingBack = new Map<RowInFlight<Row>, NodeJS.Timeout>()

  constructor(options: LeaseWatchOptions<Row>) {
    this.#options = options
  }

  start(): void {
    const { leaseMs } = this.#options.settings()
    this.#timer = setInterval(() => this.#check(), Math.max(10, trustMargin(leaseMs) / CHECKS_PER_MARGIN))
  }

  close(): void {
    clearInterval(this.#timer)
    for (const timer of this.#takingBack.values()) clearTimeout(timer)
    this.#takingBack.clear()
  }

  /** Rows of handlers that hang, or may: only this process can say so, and its reaper leaves them to it. */
  get takesBack(): string[] {
    const now = this.#options.clock.monotonicNow()
    const running = [...this.#options.slots].filter((row) => row.state === 'running')
    const hanging = running.filter((row) => this.#isInLastLease(row, now))
    return [...hanging, ...this.#takingBack.keys()].map(({ id }) => id)
  }

  /** The heartbeat found that a row is no longer ours, or no longer known to be. */
  lost({ index, generation }: HeldRow, reason: LossReason): void {
    for (const row of this.#options.slots) {
      if (row.index === index && row.generation === generation) this.#lose(row, reason)
    }
  }

  /** Tells the handlers of all rows in flight to stop. */
  abortAll(reason: AbortReason): void {
    for (const row of this.#options.slots) this.#abort(row, reason)
  }

  /** Finds leases whose time of trust has run out, for whatever reason they were not renewed. */
  #check(): void {
    const { clock, inFlight, slots, cycle, settings } = this.#options
    const now = clock.monotonicNow()
    const { leaseMs } = settings()
    for (const row of slots) {
      if (inFlight.isTrusted(row, now)) continue
      this.#lose(row, this.#isInLastLease(row, now) ? 'tooLong' : 'untrusted')
    }
    // Another worker could have taken the rows that still wait, and waiting must not cost them an attempt. This comes
    // after the check: for a lease that can no longer be trusted nothing is written, not even a release.
    cycle.release(slots.takeReadyBefore(now - leaseMs / 2))
  }

  /** The last lease of the longest hold is not renewed, see renewal.ts. */
  #isInLastLease({ claimedAt }: RowInFlight<Row>, now: number): boolean {
    const { leaseMs, maxLeases } = this.#options.settings()
    return now - claimedAt >= (maxLeases - 1) * leaseMs
  }

  #lose(row: RowInFlight<Row>, reason: LossReason): void {
    if (row.lost !== undefined) return
    // The handler's own transaction ended the lease; whether that commits is up to the handler.
    if (row.settledAs !== undefined && (reason === 'taken' || reason === 'untrusted')) return
    const { inFlight, slots, cycle, gate } = this.#options
    inFlight.lose(row, reason)
    if (slots.abandon(row)) {
      this.#abort(row, reason)
      if (reason === 'tooLong') this.#takeBackSoon(row)
    } else inFlight.giveUp(row)
    if (gate.open && slots.isClogged) this.#releaseClogged()
    slots.fill()
    cycle.notify()
  }

  /**
   * Only this process knows that the handler hangs, so it takes the row back itself: shortly before the lease is over in
   * the database, from when on any reaper may do it, with the text of the table for an expired lease. Until then the
   * handler has had half of the margin to follow its signal.
   */
  #takeBackSoon(row: RowInFlight<Row>): void {
    const { inFlight, settings } = this.#options
    const { leaseMs, maxLeases } = settings()
    const leases = maxLeases === 1 ? '1 lease' : `${maxLeases} leases`
    const reason = `the handler did not return within ${leases} of ${leaseMs} ms (maxLeases)`
    const marginMs = trustMargin(leaseMs)
    const leasedUntil = inFlight.trustedUntil(row) + marginMs
    const tryIn = (delayMs: number, attempts: number): void => {
      const timer = setTimeout(() => void attempt(attempts), delayMs)
      this.#takingBack.set(row, timer)
    }
    const attempt = async (attempts: number): Promise<void> => {
      const isOver = await this.#takeBack(row.id, reason, leasedUntil)
      if (!this.#takingBack.has(row)) return
      // Another session has locked the row, or the database counted the lease from a later moment.
      if (!isOver && attempts > 1) tryIn(TAKE_BACK_RETRY_MS, attempts - 1)
      else this.#takingBack.delete(row)
    }
    tryIn(marginMs / 2, TAKE_BACK_ATTEMPTS)
  }

  /** False when the row could not be taken back yet. */
  async #takeBack(id: string, reason: string, leasedUntil: number): Promise<boolean> {
    const { clock, events, store, table } = this.#options
    // Once the lease is over, this process may have claimed the row anew: then only an expired lease is taken back.
    const held = clock.monotonicNow() < leasedUntil ? { ownedBy: store.owner } : {}
    try {
      const reaped = await store.reap({ ids: [id], reason, ...held })
      for (const { exhausted, ...row } of reaped) {
        const outcome = exhausted ? 'dead' : 'retry'
        events.emit('reaped', { worker: store.owner, table, ...row, evicted: false, outcome })
      }
      return reaped.length > 0
    } catch (error) {
      reportError(events, store.owner, `taking back row ${id}`, error)
      return true
    }
  }

  /** Handlers that ignore their signal occupy all slots. Rows that wait for a slot are better off elsewhere. */
  #releaseClogged(): void {
    const { table, store, events, slots, cycle } = this.#options
    const error = new Error(`${slots.abandoned} handlers did not stop when their leases were lost`)
    const what = `claiming rows of ${table}, which pauses until handlers return`
    events.emit('trouble', { worker: store.owner, what, error })
    cycle.release(slots.takeReady())
  }

  #abort(row: RowInFlight<Row>, reason: AbortReason): void {
    abort(row, reason)
    this.#options.events.emit('aborted', { ...refTo(row, this.#options.table), reason })
  }
}
