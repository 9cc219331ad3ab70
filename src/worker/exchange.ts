import { isLeaseholdError } from '../errors.ts'
import { createClaimer, type Claimer, type Looked } from '../lease/claimer.ts'
import type { Claim, Ended, Lane } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { isUnavailable } from '../postgres/failures.ts'
import type { Handling } from './handling.ts'
import { type Lanes, roomIn } from './lanes.ts'
import type { Outcome } from './outcome.ts'
import { Pace } from './pace.ts'
import type { WorkerSettings } from './settings.ts'
import { followersOf, Settlements, type SettlementBatch, settlementOf } from './settlements.ts'
import { isRefusal, MOST_UNANSWERED, Settling, type SettlingOptions } from './settling.ts'
import { Signal } from './signal.ts'

export interface ExchangeOptions<Row extends object> extends Pick<
  SettlingOptions<Row>,
  'store' | 'clock' | 'events' | 'isTrusted' | 'onGone'
> {
  readonly random: () => number
  readonly settings: () => WorkerSettings
  /** How many rows the worker could take in beside those that are on their way through here. */
  readonly room: () => number
  /** Nothing is being processed: what is finished need not wait for company. */
  readonly isQuiet: () => boolean
  readonly isWoken: () => boolean
  readonly onClaimed: (claim: Claim<Row>, look: { readonly full: boolean; readonly sentAt: number }) => void
  /** Rows can be claimed that had waited, and this worker has no room for them. */
  readonly onAdvanced: () => void
  /** Where the table has lanes. */
  readonly lanes: Lanes<Row> | undefined
}

/** What one loop is to do next: settle a batch, claim up to a limit, or both at once. */
interface Turn<Row> {
  readonly batch: SettlementBatch<Row> | undefined
  readonly limit: number
  readonly lanes: readonly Lane[] | undefined
}

/** What came of it. */
type Answer<Row> = Partial<Ended> & Partial<Claim<Row> & Looked>

/** The database side of a worker: loops that take turns at settling what is finished and claiming what is next. */
export class Exchange<Row extends object> {
  readonly #options: ExchangeOptions<Row>
  readonly #settlements = new Settlements<Row>()
  readonly #signal = new Signal()
  readonly #pace: Pace
  readonly #settling: Settling<Row>
  readonly #of: { readonly worker: string; readonly table: string }
  #loops: Promise<void>[] = []
  #hurry = false
  #over = false
  /** Rows in statements on their way, to be settled or given back. */
  #leaving = 0
  /** The room those statements take up. A statement that settles and claims holds the ones or the others, never both. */
  #reserved = 0

  constructor(options: ExchangeOptions<Row>) {
    this.#options = options
    this.#pace = new Pace(options.random)
    this.#of = { worker: options.store.owner, table: tableName(options.store.table) }
    this.#settling = new Settling<Row>({
      ...options,
      onAdvanced: () => this.advanced(),
      onUnanswered: (batch) => this.#settlements.putBack(batch, this.#now()),
      onRetryIn: (ms) => this.#pace.expect(this.#now() + ms),
    })
  }

  /** Rows that are finished, but still leased. */
  get size(): number {
    return this.#settlements.size + this.#leaving
  }

  /** A claim is on its way, and what it takes is not in hand yet. */
  get isLooking(): boolean {
    return this.#pace.isLooking
  }

  start(): void {
    this.#options.lanes?.onRoom(() => {
      this.#pace.lookNow()
      this.#signal.notify()
    })
    for (let i = 0; i < this.#options.settings().claimLoops; i += 1) {
      this.#loops.push(this.#takeTurns(createClaimer(this.#options.store, this.#options.clock)))
    }
  }

  /** From now on nothing waits for company. */
  hurry(): void {
    this.#hurry = true
    this.#signal.notify()
  }

  async stop(): Promise<void> {
    this.#over = true
    this.#signal.notify()
    await Promise.all(this.#loops)
  }

  /** To be settled with others; `notify` tells that it may be time. */
  settle(handling: Handling<Row>, outcome: Outcome, now: number): void {
    this.#settlements.add(handling, outcome, now)
  }

  /** Rows go back untouched. If the database does not hear it, the reaper will find them. */
  giveBack(handlings: readonly Handling<Row>[], delayMs = 0): void {
    if (handlings.length === 0) return
    const { length } = handlings
    this.#leaving += length
    this.#reserved += length
    this.#settling
      .release(handlings, delayMs)
      .finally(() => {
        this.#leaving -= length
        this.#reserved -= length
        for (const handling of handlings) this.#options.onGone(handling, undefined)
        this.#signal.notify()
      })
      .catch((error: unknown) => this.#trouble('giving back rows', error))
  }

  /** Something may have become claimable. */
  wake(): void {
    this.#pace.wake()
    this.#signal.notify()
  }

  /** Looks for nothing for so long, unless something wakes it. */
  rest(forMs: number): void {
    this.#pace.rest(this.#now() + forMs)
  }

  /** Something has changed that may make a turn due. */
  notify(): void {
    this.#signal.notify()
  }

  /** Who waited behind what was settled is there now, and no wake-up will say so. */
  advanced(): void {
    this.wake()
    if (this.#options.room() <= 0) this.#options.onAdvanced()
  }

  /** Resolves when there is news, or after this time. */
  async news(ms: number): Promise<void> {
    await this.#signal.wait(ms)
  }

  async #takeTurns(claimer: Claimer<Row>): Promise<void> {
    while (!this.#over) {
      const now = this.#now()
      const turn = this.#nextTurn(now)
      if (turn === undefined) await this.#signal.wait(this.#idleFor(now))
      else await this.#take(claimer, turn).catch((error: unknown) => this.#trouble('taking a turn', error))
    }
  }

  #nextTurn(now: number): Turn<Row> | undefined {
    if (this.#pace.isAway(now)) return undefined
    const { batch: most } = this.#options.settings()
    // What is settled in the same statement makes room at the same moment; what has to wait takes it up.
    const waiting = this.#settlements.size - Math.min(most, this.#settlements.largest)
    const room = this.#options.room() - this.#reserved - waiting
    const claimable = Math.max(0, Math.min(most, room))
    const wanted = this.#pace.mayLook(now) ? claimable : 0
    const { lanes, room: looking } = this.#openLanes(wanted, now)
    const batch = this.#settlementIsDue(now, looking > 0)
      ? this.#settling.trusted(this.#settlements.take(most, now), now)
      : undefined
    const limit = looking > 0 ? looking : Math.min(claimable, followersOf(batch, this.#options.store.table))
    if (batch === undefined && limit === 0) return undefined
    const leaving = batch?.rows.length ?? 0
    this.#leaving += leaving
    this.#reserved += Math.max(leaving, limit)
    if (limit > 0) this.#pace.began(now)
    return { batch, limit, lanes }
  }

  #openLanes(wanted: number, now: number): { lanes: readonly Lane[] | undefined; room: number } {
    const { lanes } = this.#options
    if (lanes === undefined || wanted === 0) return { lanes: undefined, room: wanted }
    const { lanes: open, againInMs } = lanes.open(wanted)
    if (againInMs < Infinity) {
      if (open.length === 0) this.#pace.rest(now + againInMs)
      else this.#pace.expect(now + againInMs)
    }
    return { lanes: open, room: Math.min(wanted, roomIn(open)) }
  }

  #settlementIsDue(now: number, claiming: boolean): boolean {
    const settlements = this.#settlements
    if (settlements.size === 0) return false
    return (
      claiming || this.#hurry || settlements.isDue(now, this.#options.settings()) || this.#options.isQuiet()
    )
  }

  #idleFor(now: number): number {
    if (this.#pace.isAway(now)) return Math.max(1, this.#pace.nextAt(now) - now)
    const settleAt = this.#settlements.oldestAt + this.#options.settings().settleDelayMs
    return Math.max(1, Math.min(this.#pace.nextAt(now), settleAt) - now)
  }

  async #take(claimer: Claimer<Row>, turn: Turn<Row>): Promise<void> {
    const { batch, limit } = turn
    const sentAt = this.#now()
    try {
      let result: Answer<Row>
      try {
        result = await this.#send(claimer, turn)
      } catch (error) {
        if (turn.lanes !== undefined) this.#options.lanes?.looked(turn.lanes, [], true)
        await this.#failed(error, batch)
        return
      }
      if (turn.lanes !== undefined)
        this.#options.lanes?.looked(
          turn.lanes,
          result.claimed?.map(({ row }) => row) ?? [],
          result.full === true,
        )
      if (this.#pace.reached()) this.#options.events.emit('databaseBack', { worker: this.#of.worker })
      const {
        ended = [],
        fencedOff = [],
        claimed,
        trustedUntil = 0,
        place,
        drained = false,
        full = false,
      } = result
      const claim = claimed === undefined ? undefined : { claimed, trustedUntil, place, full, drained }
      if (batch !== undefined && this.#settling.mayBeOurs(batch, fencedOff)) {
        // What was claimed is not to wait for another statement.
        if (claim !== undefined) this.#claimed(claim, sentAt)
        const gone = await this.#settling.otherwise(batch, fencedOff)
        this.#settling.settled(batch, { ended, fencedOff: gone }, sentAt)
      } else {
        if (batch !== undefined) this.#settling.settled(batch, { ended, fencedOff }, sentAt)
        if (claim !== undefined) this.#claimed(claim, sentAt)
      }
      if (result.nextDueMs !== undefined) this.#pace.expect(this.#now() + result.nextDueMs)
      if (claimed === undefined && result.advanced === true) this.advanced()
    } finally {
      const leaving = batch?.rows.length ?? 0
      this.#leaving -= leaving
      this.#reserved -= Math.max(leaving, limit)
      if (limit > 0) this.#pace.ended()
      this.#signal.notify()
    }
  }

  async #send(claimer: Claimer<Row>, { batch, limit, lanes }: Turn<Row>): Promise<Answer<Row>> {
    const { leaseMs } = this.#options.settings()
    if (batch === undefined) return claimer.claim({ limit, leaseMs, lanes })
    if (limit === 0) return this.#settling.send(batch)
    return claimer.exchange(settlementOf(batch), { limit, leaseMs, lanes })
  }

  #claimed(claim: Claim<Row> & Looked, sentAt: number): void {
    const { settings, isWoken, events, onClaimed } = this.#options
    const count = claim.claimed.length
    const { full } = claim
    const now = this.#now()
    this.#pace.found({ full, drained: claim.drained }, now, { ms: settings().pollMs, woken: isWoken() })
    if (count > 0) events.emit('claimed', { ...this.#of, count, full, durationMs: now - sentAt })
    // A look can be full of rows that have to wait behind others: the next one must not be as small.
    if (count > 0 || full) onClaimed(claim, { full, sentAt })
  }

  /** A database that is away, or in trouble, is waited for; a statement that it refuses is looked at row by row. */
  async #failed(error: unknown, batch: SettlementBatch<Row> | undefined): Promise<void> {
    const late = isLeaseholdError(error, 'QUERY_TIMEOUT')
    // Somebody may have a single row of the batch locked; if it is the database, the first rows will tell.
    if (batch !== undefined && (isRefusal(error) || late)) {
      const unanswered = await this.#settling.oneByOne(batch)
      if (unanswered > 0) this.#pace.failed(this.#now(), unanswered >= MOST_UNANSWERED)
      return
    }
    const { events } = this.#options
    const away = isUnavailable(error) || late
    const now = this.#now()
    const retryInMs = this.#pace.failed(now, away)
    if (batch !== undefined) this.#settlements.putBack(batch, now)
    if (away) events.emit('databaseLost', { worker: this.#of.worker, error, retryInMs })
    else this.#trouble(`claiming or settling rows of ${this.#of.table}`, error)
  }

  #trouble(what: string, error: unknown): void {
    this.#options.events.emit('trouble', { ...this.#of, what, error })
  }

  #now(): number {
    return this.#options.clock.monotonicNow()
  }
}
