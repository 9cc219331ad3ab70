import { setTimeout as pause } from 'node:timers/promises'
import type { Clock } from '../../clock.ts'
import type { Lease } from '../../lease/lease.ts'
import type { Ended, LeaseStore } from '../../lease/store.ts'
import { tableName } from '../../lease/table.ts'
import type { ClaimTiming } from '../claiming/claim-timing.ts'
import { type Events, mayHaveBeenWritten, reportError } from '../events.ts'
import { latenciesOf, type RowInFlight, type RowsInFlight } from '../rows-in-flight.ts'
import type { Signal } from '../waiting.ts'
import { filterBatch, type FinishedBatch, type FinishedRows } from './finished-rows.ts'

/** A row that another session has locked is settled or released after this time, if it is free by then. */
const LOCKED_ROW_RETRY_MS = 200

/** What became of a row that was sent to be settled. `refused`: a data error stops it; its lease will expire. */
type Fate = 'settled' | 'settledOtherwise' | 'fencedOff' | 'locked' | 'refused'

export interface SettlerOptions<Row extends object> {
  readonly store: Pick<LeaseStore<Row>, 'owner' | 'table' | 'settle' | 'release'>
  readonly clock: Clock
  readonly events: Events
  readonly inFlight: RowsInFlight<Row>
  readonly finished: FinishedRows<Row>
  readonly timing: Pick<ClaimTiming, 'expect'>
  /** Notified when rows are no longer in flight, or wait to be settled again. */
  readonly signal: Signal
}

/** Settles and releases rows, and decides what happens to each by the answer of the database. */
export class Settler<Row extends object> {
  readonly #options: SettlerOptions<Row>
  readonly #source: { readonly worker: string; readonly table: string }
  #pending = 0

  constructor(options: SettlerOptions<Row>) {
    this.#options = options
    this.#source = { worker: options.store.owner, table: tableName(options.store.table) }
  }

  /** Rows that are being released, or wait because another session has locked them. */
  get pending(): number {
    return this.#pending
  }

  /** The batches without the rows whose lease can no longer be trusted: those are not settled (D8). */
  trusted(batches: readonly FinishedBatch<Row>[], now: number): FinishedBatch<Row>[] {
    const { inFlight } = this.#options
    return batches.flatMap((batch) => {
      // Asked once: the heartbeat may lose a row at any moment.
      const trusted = filterBatch(batch, (row) => inFlight.isTrusted(row, now))
      if (trusted.rows.length === batch.rows.length) return [batch]
      const isKept = new Set(trusted.rows)
      for (const row of batch.rows) if (!isKept.has(row)) inFlight.giveUp(row, batch.outcome)
      return trusted.rows.length === 0 ? [] : [trusted]
    })
  }

  /** Carries out what the answer of the database means for each row of the batch. */
  async answered(batch: FinishedBatch<Row>, answer: Ended, sentAt: number): Promise<void> {
    const { inFlight } = this.#options
    // Most batches: nothing is to be found out about single rows.
    if (answer.ended.length === batch.rows.length) {
      for (const row of batch.rows) inFlight.drop(row)
      this.#expectRetries(batch)
      this.#tellSettled(batch.outcome, batch.rows, sentAt)
      return
    }
    const fates = fatesIn(answer)
    const { unanswered } = answer
    this.#tellRefused('settle', answer.refused)
    if (unanswered !== undefined) markUnanswered(batch, unanswered.leases, unanswered.error)
    await this.#settleOtherwise(batch, fates)
    const settled: RowInFlight<Row>[] = []
    for (const row of batch.rows) {
      const fate = this.#isSettledByHandler(row, fates.get(row.lease))
        ? 'settledOtherwise'
        : fates.get(row.lease)
      if (fate === 'settled') settled.push(row)
      if (fate !== 'locked') inFlight.drop(row, fate === 'fencedOff' ? batch.outcome : undefined)
    }
    const locked = filterBatch(batch, ({ lease }) => fates.get(lease) === 'locked')
    if (locked.rows.length > 0) this.#retryLocked(locked)
    if (settled.length === 0) return
    this.#expectRetries(batch)
    this.#tellSettled(batch.outcome, settled, sentAt)
  }

  /**
   * The handler settled the row in its own transaction, and then threw. If that transaction was rolled back, the row is
   * still leased. It is not, so it was committed: within the time of trust only a settlement ends a lease, unless this
   * process was declared dead.
   */
  #isSettledByHandler(row: RowInFlight<Row>, fate: Fate | undefined): boolean {
    const { settledAs } = row
    if (fate !== 'fencedOff' || settledAs === undefined) return false
    if (!this.#options.inFlight.isTrusted(row, this.#now())) return false
    this.#tellSettled(settledAs.name, [row], this.#now())
    return true
  }

  /**
   * Rows that were not settled may still be ours: the condition of the outcome (`when`) no longer holds. Those get the
   * outcome that it names for this case. What is still fenced off after that really is.
   */
  async #settleOtherwise(batch: FinishedBatch<Row>, fates: Map<Lease, Fate>): Promise<void> {
    const { store } = this.#options
    const otherwise = store.table.outcomes[batch.outcome]?.otherwise
    if (otherwise === undefined) return
    const fencedOff = leasesWith('fencedOff', fates)
    if (fencedOff.length === 0) return
    const sentAt = this.#now()
    try {
      const answer = await store.settle(otherwise, fencedOff)
      for (const [lease, fate] of fatesIn(answer))
        fates.set(lease, fate === 'settled' ? 'settledOtherwise' : fate)
      this.#tellRefused('settle', answer.refused)
      const settled = batch.rows.filter(({ lease }) => answer.ended.includes(lease))
      if (settled.length > 0) this.#tellSettled(otherwise, settled, sentAt)
    } catch (error) {
      for (const lease of fencedOff) fates.set(lease, 'locked')
      markUnanswered(batch, fencedOff, error)
      this.#trouble(`settling rows of ${this.#source.table} as ${otherwise}`, error)
    }
  }

  /** Rows go back untouched: also later, if the release does not reach the database. */
  release(rows: readonly RowInFlight<Row>[], delayMs: number): void {
    this.#pending += rows.length
    this.#releaseAll(rows, delayMs).catch((error: unknown) => this.#trouble('releasing rows', error))
  }

  /** A row that another session has locked goes back when it is free: it is not to lose an attempt to that (D9). */
  async #releaseAll(rows: readonly RowInFlight<Row>[], delayMs: number): Promise<void> {
    const { inFlight, signal } = this.#options
    let waiting = rows
    while (waiting.length > 0) {
      const locked = await this.#sendRelease(waiting, delayMs)
      for (const row of waiting) {
        if (locked?.has(row) === true) continue
        this.#pending -= 1
        if (locked === undefined) inFlight.giveUp(row, undefined, false)
        else inFlight.drop(row)
      }
      signal.notify()
      waiting = [...(locked ?? [])]
      if (waiting.length > 0) await pause(LOCKED_ROW_RETRY_MS)
    }
  }

  /** Returns the rows that another session has locked, as long as they are ours. Undefined: the release failed. */
  async #sendRelease(
    rows: readonly RowInFlight<Row>[],
    delayMs: number,
  ): Promise<ReadonlySet<RowInFlight<Row>> | undefined> {
    const { store, events, inFlight } = this.#options
    try {
      const leases = rows.map(({ lease }) => lease)
      const { ended, busy, refused } = await store.release(leases, delayMs)
      this.#tellRefused('release', refused)
      if (ended.length > 0) events.emit('released', { ...this.#source, ids: ended.map(({ id }) => id) })
      const now = this.#now()
      return new Set(rows.filter((row) => busy.includes(row.lease) && inFlight.isTrusted(row, now)))
    } catch (error) {
      this.#trouble(`releasing rows of ${this.#source.table}`, error)
      return undefined
    }
  }

  #retryLocked(batch: FinishedBatch<Row>): void {
    const { finished, signal } = this.#options
    this.#pending += batch.rows.length
    setTimeout(() => {
      this.#pending -= batch.rows.length
      finished.putBack(batch, this.#now())
      signal.notify()
    }, LOCKED_ROW_RETRY_MS)
  }

  /** Their leases expire, and an attempt is counted then. */
  #tellRefused(verb: 'settle' | 'release', refused: Ended['refused']): void {
    for (const { lease, error } of refused)
      this.#options.events.emit('dataError', { ...this.#source, verb, id: lease.id, error })
  }

  /** A row that is to be retried after a while is claimed then, and not at the next poll. */
  #expectRetries({ args = [] }: FinishedBatch<Row>): void {
    const delays = new Set(args.map((one) => one['delay_ms']))
    for (const delay of delays)
      if (typeof delay === 'number') this.#options.timing.expect(this.#now() + delay)
  }

  #tellSettled(outcome: string, rows: readonly RowInFlight<Row>[], sentAt: number): void {
    const { events, store } = this.#options
    if (!events.wanted('settled')) return
    const now = this.#now()
    const ids = rows.map(({ id }) => id)
    const latencies = latenciesOf(rows, outcome, store.table.createdAt, now)
    events.emit('settled', { ...this.#source, outcome, ids, durationMs: now - sentAt, ...latencies })
  }

  #trouble(what: string, error: unknown): void {
    reportError(this.#options.events, this.#source.worker, what, error)
  }

  #now(): number {
    return this.#options.clock.monotonicNow()
  }
}

/** These rows are settled once more. If the first settlement was written, the second finds them fenced off. */
function markUnanswered<Row extends object>(
  { rows }: FinishedBatch<Row>,
  leases: readonly Lease[],
  error: unknown,
): void {
  if (!mayHaveBeenWritten(error)) return
  for (const row of rows) if (leases.includes(row.lease)) row.isSettlementUnanswered = true
}

function fatesIn({ ended, fencedOff, busy, refused }: Ended): Map<Lease, Fate> {
  const fates = new Map<Lease, Fate>()
  for (const lease of ended) fates.set(lease, 'settled')
  for (const lease of fencedOff) fates.set(lease, 'fencedOff')
  for (const lease of busy) fates.set(lease, 'locked')
  for (const { lease } of refused) fates.set(lease, 'refused')
  return fates
}

function leasesWith(wanted: Fate, fates: ReadonlyMap<Lease, Fate>): Lease[] {
  return [...fates].flatMap(([lease, fate]) => (fate === wanted ? [lease] : []))
}
