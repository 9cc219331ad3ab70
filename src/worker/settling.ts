import type { Clock } from '../clock.ts'
import type { Lease } from '../lease/lease.ts'
import type { Ended, LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import type { Events } from './events.ts'
import type { Handling } from './handling.ts'
import { only, type SettlementBatch, settlementOf } from './settlements.ts'

export interface SettlingOptions<Row extends object> {
  readonly store: LeaseStore<Row>
  readonly clock: Clock
  readonly events: Events
  readonly isTrusted: (handling: Handling<Row>, now: number) => boolean
  /** The row is no longer in flight here. */
  readonly onGone: (handling: Handling<Row>, how: { readonly fencedOffAs: string } | undefined) => void
  /** Rows that another session has locked are to be settled later. */
  readonly onBusy: (batch: SettlementBatch<Row>) => void
  /** A row was settled so that it is to be tried again after this time. */
  readonly onRetryIn: (ms: number) => void
}

/** What becomes of a batch: which of its rows may be sent at all, which were settled, and what happens to the others. */
export class Settling<Row extends object> {
  readonly #options: SettlingOptions<Row>
  readonly #of: { readonly worker: string; readonly table: string }

  constructor(options: SettlingOptions<Row>) {
    this.#options = options
    this.#of = { worker: options.store.owner, table: tableName(options.store.table) }
  }

  /** A lease that can no longer be trusted is not settled (D8). */
  trusted(batch: SettlementBatch<Row> | undefined, now: number): SettlementBatch<Row> | undefined {
    const { isTrusted, onGone } = this.#options
    if (batch === undefined || batch.rows.every((row) => isTrusted(row, now))) return batch
    for (const row of batch.rows) if (!isTrusted(row, now)) onGone(row, { fencedOffAs: batch.outcome })
    const trusted = only(batch, (row) => isTrusted(row, now))
    return trusted.rows.length === 0 ? undefined : trusted
  }

  async send(batch: SettlementBatch<Row>): Promise<Ended> {
    const { leases, ...args } = settlementOf(batch)
    return this.#options.store.settle(batch.outcome, leases, args)
  }

  /** Sorts the rows of a batch by what the database said of them. */
  async settled(batch: SettlementBatch<Row>, answer: Ended, sentAt: number): Promise<void> {
    const { onGone, onBusy } = this.#options
    const { ended, refused } = answer
    const busy = new Set(answer.busy)
    this.#tellRefused('settle', refused)
    const otherwise = await this.#otherwise(batch, answer.fencedOff)
    for (const lease of otherwise.busy) busy.add(lease)
    if (busy.size > 0) onBusy(only(batch, ({ lease }) => busy.has(lease)))
    const fencedOff = new Set(otherwise.fencedOff)
    for (const row of batch.rows) {
      if (!busy.has(row.lease))
        onGone(row, fencedOff.has(row.lease) ? { fencedOffAs: batch.outcome } : undefined)
    }
    if (ended.length === 0) return
    this.#expectRetries(batch)
    this.#tellSettled(batch.outcome, ended, sentAt)
  }

  /**
   * Rows that were not settled may still be ours: what the outcome asks of the row is no longer true. Those get the other
   * outcome it names. Returns the leases that are really fenced off, and those that are to be tried again.
   */
  async #otherwise(
    batch: SettlementBatch<Row>,
    fencedOff: readonly Lease[],
  ): Promise<Pick<Ended, 'fencedOff' | 'busy'>> {
    const { store } = this.#options
    const otherwise = store.table.outcomes[batch.outcome]?.otherwise
    if (otherwise === undefined || fencedOff.length === 0) return { fencedOff, busy: [] }
    const sentAt = this.#now()
    try {
      const answer = await store.settle(otherwise, fencedOff)
      this.#tellRefused('settle', answer.refused)
      if (answer.ended.length > 0) this.#tellSettled(otherwise, answer.ended, sentAt)
      return answer
    } catch (error) {
      this.#trouble(`settling rows of ${this.#of.table} as ${otherwise}`, error)
      return { fencedOff: [], busy: fencedOff }
    }
  }

  /** Returns the rows that another session has locked, as long as they are ours. */
  async release(handlings: readonly Handling<Row>[], delayMs: number): Promise<readonly Handling<Row>[]> {
    const { store, events, isTrusted } = this.#options
    try {
      const leases = handlings.map(({ lease }) => lease)
      const { ended, busy, refused } = await store.release(leases, delayMs)
      this.#tellRefused('release', refused)
      if (ended.length > 0) events.emit('released', { ...this.#of, ids: ended.map(({ id }) => id) })
      const now = this.#now()
      return handlings.filter((handling) => busy.includes(handling.lease) && isTrusted(handling, now))
    } catch (error) {
      this.#trouble(`releasing rows of ${this.#of.table}`, error)
      return []
    }
  }

  /** Their leases run out, and an attempt is counted then. */
  #tellRefused(verb: 'settle' | 'release', refused: Ended['refused']): void {
    for (const { lease, error } of refused)
      this.#options.events.emit('dataError', { ...this.#of, verb, id: lease.id, error })
  }

  /** What is to be tried again after a while is claimed then, and not at the next poll. */
  #expectRetries({ args = [] }: SettlementBatch<Row>): void {
    const delays = new Set(args.map((one) => one['delay_ms']))
    for (const delay of delays) if (typeof delay === 'number') this.#options.onRetryIn(delay)
  }

  #tellSettled(outcome: string, ended: readonly Lease[], sentAt: number): void {
    const { events } = this.#options
    if (!events.wanted('settled')) return
    const ids = ended.map(({ id }) => id)
    events.emit('settled', { ...this.#of, outcome, ids, durationMs: this.#now() - sentAt })
  }

  #trouble(what: string, error: unknown): void {
    this.#options.events.emit('trouble', { ...this.#of, what, error })
  }

  #now(): number {
    return this.#options.clock.monotonicNow()
  }
}
