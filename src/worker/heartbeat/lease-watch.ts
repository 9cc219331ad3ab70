import type { Clock } from '../../clock.ts'
import { trustMargin } from '../../lease/lease.ts'
import type { LeaseStore } from '../../lease/store.ts'
import type { PauseGate } from '../claiming/pausing.ts'
import { type Events, type LossReason, reportError } from '../events.ts'
import { abort, type AbortReason, refTo, type RowInFlight, type RowsInFlight } from '../rows-in-flight.ts'
import type { WorkerLoop } from '../worker-loop.ts'
import type { WorkerSettings } from '../settings.ts'
import type { Slots } from '../slots/slots.ts'
import type { HeldRow } from './held-rows.ts'

export interface LeaseWatchOptions<Row extends object> {
  readonly table: string
  readonly store: Pick<LeaseStore<Row>, 'owner' | 'reap'>
  readonly clock: Clock
  readonly events: Events
  readonly settings: () => WorkerSettings
  readonly gate: PauseGate
  readonly inFlight: RowsInFlight<Row>
  readonly slots: Slots<Row>
  readonly loop: WorkerLoop<Row>
}

/** How often leases are checked for trust that has run out; more often for a short lease. */
const CHECK_MS = 250

/** How often a process tries to take back a row whose handler hangs, before it is left to the reapers. */
const TAKE_BACK_ATTEMPTS = 5

/** Ends the processing of rows whose lease is lost, or can no longer be trusted. */
export class LeaseWatch<Row extends object> {
  readonly #options: LeaseWatchOptions<Row>
  #timer: NodeJS.Timeout | undefined
  readonly #takingBack = new Set<NodeJS.Timeout>()

  constructor(options: LeaseWatchOptions<Row>) {
    this.#options = options
  }

  start(): void {
    const { leaseMs } = this.#options.settings()
    this.#timer = setInterval(() => this.#check(), Math.max(10, Math.min(CHECK_MS, leaseMs / 20)))
  }

  close(): void {
    clearInterval(this.#timer)
    for (const timer of this.#takingBack) clearTimeout(timer)
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
    const { clock, inFlight, slots, loop, settings } = this.#options
    const now = clock.monotonicNow()
    const { leaseMs, maxLeases } = settings()
    for (const row of slots) {
      if (inFlight.isTrusted(row, now)) continue
      // The last lease of the longest hold is not renewed, see renewal.ts.
      const isTooLong = now - row.claimedAt >= (maxLeases - 1) * leaseMs
      this.#lose(row, isTooLong ? 'tooLong' : 'untrusted')
    }
    // Another worker could have taken the rows that still wait, and waiting must not cost them an attempt. This comes
    // after the check: for a lease that can no longer be trusted nothing is written, not even a release.
    loop.release(slots.takeReadyBefore(now - leaseMs / 2))
  }

  #lose(row: RowInFlight<Row>, reason: LossReason): void {
    if (row.lost !== undefined) return
    // The handler's own transaction ended the lease; whether that commits is up to the handler.
    if (row.settledAs !== undefined && (reason === 'taken' || reason === 'untrusted')) return
    const { inFlight, slots, loop, gate } = this.#options
    inFlight.lose(row, reason)
    if (slots.abandon(row)) {
      this.#abort(row, reason)
      if (reason === 'tooLong') this.#takeBackSoon(row.id)
    } else inFlight.drop(row)
    if (gate.open && slots.isClogged) this.#releaseClogged()
    slots.fill()
    loop.notify()
  }

  /**
   * Only this process knows that the handler hangs, so it takes the row back itself, once the lease is over in the
   * database too. If it is not in time, any reaper does, and writes what the table says of an expired lease.
   */
  #takeBackSoon(id: string, attempts = TAKE_BACK_ATTEMPTS): void {
    const { leaseMs, maxLeases } = this.#options.settings()
    const leases = maxLeases === 1 ? '1 lease' : `${maxLeases} leases`
    const reason = `the handler did not return within ${leases} of ${leaseMs} ms (maxLeases)`
    const timer = setTimeout(
      () => {
        this.#takingBack.delete(timer)
        const { events, store } = this.#options
        this.#takeBack(id, reason, attempts).catch((error: unknown) =>
          reportError(events, store.owner, `taking back row ${id}`, error),
        )
      },
      trustMargin(leaseMs) + CHECK_MS,
    )
    this.#takingBack.add(timer)
  }

  async #takeBack(id: string, reason: string, attempts: number): Promise<void> {
    const { events, store, table } = this.#options
    const reaped = await store.reap({ ids: [id], reason })
    for (const { exhausted, ...row } of reaped) {
      const outcome = exhausted ? 'dead' : 'retry'
      events.emit('reaped', { worker: store.owner, table, ...row, evicted: false, outcome })
    }
    // The database may have counted the lease from a later moment.
    if (reaped.length === 0 && attempts > 1) this.#takeBackSoon(id, attempts - 1)
  }

  /** Handlers that ignore their signal occupy all slots. Rows that wait for a slot are better off elsewhere. */
  #releaseClogged(): void {
    const { table, store, events, slots, loop } = this.#options
    const error = new Error(`${slots.abandoned} handlers did not stop when their leases were lost`)
    const what = `claiming rows of ${table}, which pauses until handlers return`
    events.emit('trouble', { worker: store.owner, what, error })
    loop.release(slots.takeReady())
  }

  #abort(row: RowInFlight<Row>, reason: AbortReason): void {
    abort(row, reason)
    this.#options.events.emit('aborted', { ...refTo(row, this.#options.table), reason })
  }
}
