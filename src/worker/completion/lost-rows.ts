/**
 * Gives back the rows whose leases this process lost although it lives: the database was away, or too slow (D10). Their
 * leases would expire, which says nothing about the rows. The fence keeps that safe: a row that somebody else has taken
 * back meanwhile is not changed.
 *
 * - A row whose handler never ran is released: it loses no attempt.
 * - A row whose handler ran, and did not come to its end in time, has failed once. That counts no expiry.
 * - A claim whose answer was lost may have leased rows of which this process does not know. Once their leases have expired
 *   they are released like the first.
 */
import type { Clock } from '../../clock.ts'
import type { Lease } from '../../lease/lease.ts'
import type { Ended, LeaseStore } from '../../lease/store.ts'
import { tableName } from '../../lease/table.ts'
import { type Events, isDatabaseAway, isDeadOutcome, reportError } from '../events.ts'
import type { RowInFlight } from '../rows-in-flight.ts'
import { type Outcome, retry, retryOrDead, retryRulesFor, withAllArgs } from './outcome.ts'

export interface LostRowsOptions<Row extends object> {
  readonly store: LeaseStore<Row>
  readonly clock: Clock
  readonly random: () => number
  readonly events: Events
  /** The expired leases of this process on rows of this table that none of its workers knows. */
  readonly findForgotten: () => Promise<readonly Lease[]>
  /** Rows were given back, and can be claimed. */
  readonly onGivenBack: () => void
}

const RETRY_MS = 500
/** Rows of an unanswered claim are looked for more seldom: they cannot be told from others before their leases have expired. */
const LOOK_MS = 2_000

/** How long after the end of its lease a row of an unanswered claim is still looked for: a statement may commit late. */
const LATE_COMMIT_MS = 10_000

const LOST = new Error('the lease was lost: the database was away, or did not answer in time')

export class LostRows<Row extends object> {
  readonly #options: LostRowsOptions<Row>
  readonly #source: { readonly worker: string; readonly table: string }
  #unstarted: RowInFlight<Row>[] = []
  #failed: RowInFlight<Row>[] = []
  /** Until when an unanswered claim may turn out to have leased rows. */
  #forgottenUntil: number | undefined
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(options: LostRowsOptions<Row>) {
    this.#options = options
    this.#source = { worker: options.store.owner, table: tableName(options.store.table) }
  }

  get size(): number {
    return this.#unstarted.length + this.#failed.length
  }

  get ids(): string[] {
    return [...this.#unstarted, ...this.#failed].map(({ id }) => id)
  }

  add(row: RowInFlight<Row>, hasRun: boolean): void {
    if (hasRun) this.#failed.push(row)
    else this.#unstarted.push(row)
    this.#schedule()
  }

  /** The answer to a claim for such leases did not come. */
  claimUnanswered(leaseMs: number): void {
    this.#forgottenUntil = this.#options.clock.monotonicNow() + leaseMs + LATE_COMMIT_MS
    this.#schedule()
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
  }

  #schedule(): void {
    if (this.#isClosed) return
    this.#timer ??= setTimeout(() => void this.#giveBack(), this.size > 0 ? RETRY_MS : LOOK_MS)
  }

  async #giveBack(): Promise<void> {
    const { events, onGivenBack } = this.#options
    const size = this.size
    try {
      await this.#releaseUnstarted()
      await this.#settleFailed()
      await this.#releaseForgotten()
    } catch (error) {
      reportError(events, this.#source.worker, `giving back rows of ${this.#source.table}`, error)
      if (!isDatabaseAway(error)) this.#leaveToReaper()
    }
    this.#timer = undefined
    if (this.size < size) onGivenBack()
    if (this.size > 0 || this.#forgottenUntil !== undefined) this.#schedule()
  }

  async #releaseUnstarted(): Promise<void> {
    const rows = this.#unstarted
    if (rows.length === 0) return
    const { busy, ended } = await this.#release(rows.map(({ lease }) => lease))
    this.#unstarted = this.#unstarted.filter((row) => !rows.includes(row) || busy.includes(row.lease))
    if (ended.length > 0) this.#options.onGivenBack()
  }

  async #settleFailed(): Promise<void> {
    const { store, random, events } = this.#options
    const rows = this.#failed
    const outcomes = new Map<string, { readonly row: RowInFlight<Row>; readonly outcome: Outcome }[]>()
    for (const row of rows) {
      const decided = retryOrDead(retry({ error: LOST, delayMs: 0 }), retryRulesFor(row, store.table, random))
      const outcome = withAllArgs(decided, store.table)
      outcomes.set(outcome.name, [...(outcomes.get(outcome.name) ?? []), { row, outcome }])
    }
    for (const [name, batch] of outcomes) {
      const leases = batch.map(({ row }) => row.lease)
      const args = batch.map(({ outcome }) => outcome.args)
      const isDeclared = Object.hasOwn(store.table.outcomes, name)
      const { ended, busy } = isDeclared
        ? await store.settle(name, leases, { args })
        : await this.#release(leases)
      this.#failed = this.#failed.filter((row) => !leases.includes(row.lease) || busy.includes(row.lease))
      for (const { id, token, owner } of isDeclared ? ended : []) {
        const outcome = isDeadOutcome(name) ? 'dead' : 'retry'
        events.emit('reaped', { ...this.#source, id, token, owner, staleMs: 0, evicted: false, outcome })
      }
    }
  }

  async #releaseForgotten(): Promise<void> {
    if (this.#forgottenUntil === undefined) return
    const { clock, findForgotten } = this.#options
    const isLast = clock.monotonicNow() > this.#forgottenUntil
    const leases = await findForgotten()
    if (leases.length > 0) {
      const { ended } = await this.#release(leases)
      if (ended.length > 0) this.#options.onGivenBack()
    }
    if (isLast) this.#forgottenUntil = undefined
  }

  async #release(leases: readonly Lease[]): Promise<Ended> {
    const { store, events } = this.#options
    const answer = await store.release(leases)
    const ids = answer.ended.map(({ id }) => id)
    if (ids.length > 0) events.emit('released', { ...this.#source, ids })
    return answer
  }

  #leaveToReaper(): void {
    this.#unstarted = []
    this.#failed = []
    this.#forgottenUntil = undefined
  }
}
