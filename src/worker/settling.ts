import type { Clock } from '../clock.ts'
import type { Lease } from '../lease/lease.ts'
import type { Ended, LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import type { Events } from './events.ts'
import type { Handling } from './handling.ts'
import { type SettlementBatch, settlementOf } from './settlements.ts'

export interface SettlingOptions<Row extends object> {
  readonly store: LeaseStore<Row>
  readonly clock: Clock
  readonly events: Events
  readonly isTrusted: (handling: Handling<Row>, now: number) => boolean
  /** The row is out of our hands. */
  readonly onGone: (handling: Handling<Row>, how: { readonly fencedOffAs: string } | undefined) => void
  /** Rows can be claimed that had waited. */
  readonly onAdvanced: () => void
  /** It is to be tried again. */
  readonly onUnanswered: (batch: SettlementBatch<Row>) => void
  /** A row was settled so that it is to be tried again after this time. */
  readonly onRetryIn: (ms: number) => void
}

/** After so many rows that did not answer it is the database, and not somebody's lock. */
export const MOST_UNANSWERED = 2

/** What becomes of a batch: which of its rows may be sent at all, which were settled, and what to do about the others. */
export class Settling<Row extends object> {
  readonly #options: SettlingOptions<Row>
  readonly #of: { readonly worker: string; readonly table: string }

  constructor(options: SettlingOptions<Row>) {
    this.#options = options
    this.#of = { worker: options.store.owner, table: tableName(options.store.table) }
  }

  /** What can no longer be trusted is not sent (D8). */
  trusted(batch: SettlementBatch<Row> | undefined, now: number): SettlementBatch<Row> | undefined {
    const { isTrusted, onGone } = this.#options
    if (batch === undefined || batch.rows.every((row) => isTrusted(row, now))) return batch
    const trusted = batch.rows.map((row) => isTrusted(row, now))
    batch.rows.forEach((row, i) => {
      if (trusted[i] !== true) onGone(row, { fencedOffAs: batch.outcome })
    })
    const rows = batch.rows.filter((_, i) => trusted[i])
    return rows.length === 0 ? undefined : { ...batch, rows, args: batch.args?.filter((_, i) => trusted[i]) }
  }

  async send(batch: SettlementBatch<Row>): Promise<Ended> {
    const { outcome, leases, ...args } = settlementOf(batch)
    return this.#options.store.settle(outcome, leases, args)
  }

  settled(batch: SettlementBatch<Row>, { ended, fencedOff }: Ended, sentAt: number): void {
    const gone = fencedOff.length === 0 ? undefined : new Set(fencedOff)
    for (const row of batch.rows)
      this.#options.onGone(row, gone?.has(row.lease) === true ? { fencedOffAs: batch.outcome } : undefined)
    if (ended.length === 0) return
    this.#expectRetries(batch)
    this.#tellSettled(batch.outcome, ended, sentAt)
  }

  mayBeOurs({ outcome }: SettlementBatch<Row>, fencedOff: readonly Lease[]): boolean {
    return fencedOff.length > 0 && this.#options.store.table.outcomes[outcome]?.otherwise !== undefined
  }

  /** Of those that were not settled, some may be ours still: what the outcome asks of the row is no longer true. */
  async otherwise(batch: SettlementBatch<Row>, fencedOff: readonly Lease[]): Promise<readonly Lease[]> {
    const { store } = this.#options
    const otherwise = store.table.outcomes[batch.outcome]?.otherwise
    if (otherwise === undefined || !this.mayBeOurs(batch, fencedOff)) return fencedOff
    const sentAt = this.#now()
    try {
      const { ended, fencedOff: gone } = await store.settle(otherwise, fencedOff)
      if (ended.length > 0) this.#tellSettled(otherwise, ended, sentAt)
      return gone
    } catch (error) {
      // Nothing was written for them; they can be claimed again when their leases are over.
      this.#trouble(`settling rows of ${this.#of.table} as ${otherwise}`, error)
      return fencedOff
    }
  }

  /**
   * One row that the database refuses to settle so, or that somebody has locked, must not hold up the others. What is
   * refused is left to the reaper; what did not answer is tried again. Returns how many that were.
   */
  async oneByOne(batch: SettlementBatch<Row>): Promise<number> {
    const { onGone, onAdvanced, onUnanswered } = this.#options
    let unanswered = 0
    for (const [i, row] of batch.rows.entries()) {
      const single = { outcome: batch.outcome, rows: [row], args: batch.args?.slice(i, i + 1) }
      if (unanswered >= MOST_UNANSWERED) {
        onUnanswered(single)
        continue
      }
      try {
        const ended = await this.send(single)
        const fencedOff = await this.otherwise(single, ended.fencedOff)
        this.settled(single, { ...ended, fencedOff }, this.#now())
        if (ended.advanced === true) onAdvanced()
      } catch (error) {
        if (isRefusal(error)) onGone(row, undefined)
        else {
          unanswered += 1
          onUnanswered(single)
        }
        this.#trouble(`settling row ${row.lease.id} of ${this.#of.table}`, error)
      }
    }
    return unanswered
  }

  async release(handlings: readonly Handling<Row>[], delayMs: number): Promise<void> {
    const { store, events } = this.#options
    try {
      const leases = handlings.map(({ lease }) => lease)
      const { ended } = await store.release(leases, delayMs)
      events.emit('released', { ...this.#of, ids: ended.map(({ id }) => id) })
    } catch (error) {
      this.#trouble(`giving back rows of ${this.#of.table}`, error)
    }
  }

  /** What is to be tried again after a while is looked for then, and not at the next poll. */
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

/** Data, integrity, a trigger's own words, a statement that does not fit: trying again would bring the same. */
const REFUSALS = /^(?:22|23|42|P0)/

export function isRefusal(error: unknown): boolean {
  if (error instanceof TypeError) return true
  return (
    error instanceof Error && 'code' in error && typeof error.code === 'string' && REFUSALS.test(error.code)
  )
}
