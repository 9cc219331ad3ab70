import { type Clock } from '../clock.ts'
import { isLeaseholdError } from '../errors.ts'
import { createClaimer, type Claimer } from '../lease/claimer.ts'
import { type Lease } from '../lease/lease.ts'
import { type Claim, type Ended, type Lane, type LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { isUnavailable } from '../postgres/failures.ts'
import { type Events } from './events.ts'
import { type Handling } from './handling.ts'
import { type Lanes } from './lanes.ts'
import { type Outcome } from './outcome.ts'
import { Pace } from './pace.ts'
import { type WorkerSettings } from './settings.ts'
import { Settlements, type SettlementBatch } from './settlements.ts'
import { Signal } from './signal.ts'

export interface ExchangeOptions<Row extends object> {
  readonly store: LeaseStore<Row>
  readonly clock: Clock
  readonly random: () => number
  readonly events: Events
  readonly settings: () => WorkerSettings
  /** How many rows the worker could take in beside those that are on their way through here. */
  readonly room: () => number
  /** Nothing is being processed: what is finished need not wait for company. */
  readonly isQuiet: () => boolean
  readonly isTrusted: (handling: Handling<Row>, now: number) => boolean
  readonly isWoken: () => boolean
  readonly onClaimed: (claim: Claim<Row>, look: { readonly full: boolean; readonly sentAt: number }) => void
  /** Rows can be claimed that had waited, and this worker has no room for them. */
  readonly onAdvanced: () => void
  /** The row is out of our hands. */
  readonly onGone: (handling: Handling<Row>, how: { readonly fencedOffAs: string } | undefined) => void
  /** Where the table has lanes. */
  readonly lanes: Lanes<Row> | undefined
}

/** What one loop is to do next: settle a batch, claim up to a limit, or both at once. */
interface Turn<Row> {
  readonly batch: SettlementBatch<Row> | undefined
  readonly limit: number
  readonly lanes: readonly Lane[] | undefined
}

/** The database side of a worker: loops that take turns at settling what is finished and claiming what is next. */
export class Exchange<Row extends object> {
  readonly #options: ExchangeOptions<Row>
  readonly #settlements = new Settlements<Row>()
  readonly #signal = new Signal()
  readonly #pace: Pace
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
    const { store, events, onGone } = this.#options
    const leases = handlings.map(({ lease }) => lease)
    this.#leaving += handlings.length
    this.#reserved += handlings.length
    store
      .release(leases, delayMs)
      .then(
        ({ ended }) => events.emit('released', { ...this.#of, ids: ended.map(({ id }) => id) }),
        (error: unknown) =>
          events.emit('trouble', { ...this.#of, what: `giving back rows of ${this.#of.table}`, error }),
      )
      .finally(() => {
        this.#leaving -= handlings.length
        this.#reserved -= handlings.length
        for (const handling of handlings) onGone(handling, undefined)
        this.#signal.notify()
      })
      .catch((error: unknown) => events.emit('trouble', { ...this.#of, what: 'giving back rows', error }))
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
    const batch = this.#settlementIsDue(now, looking > 0) ? this.#trustedBatch(now) : undefined
    const limit = looking > 0 ? looking : Math.min(claimable, this.#followersOf(batch))
    if (batch === undefined && limit === 0) return undefined
    const leaving = batch?.rows.length ?? 0
    this.#leaving += leaving
    this.#reserved += Math.max(leaving, limit)
    if (limit > 0) this.#pace.began(now)
    return { batch, limit, lanes }
  }

  /** Room for a look is no more than there is in the lanes that are open. */
  #openLanes(room: number, now: number): { lanes: readonly Lane[] | undefined; room: number } {
    if (this.#options.lanes === undefined || room === 0) return { lanes: undefined, room }
    const { lanes, againInMs } = this.#options.lanes.open(room)
    if (againInMs < Infinity) {
      if (lanes.length === 0) this.#pace.rest(now + againInMs)
      else this.#pace.expect(now + againInMs)
    }
    return {
      lanes,
      room: Math.min(
        room,
        lanes.reduce((sum, lane) => sum + lane.room, 0),
      ),
    }
  }

  /** Who waits behind the rows of a batch is claimed in the statement that settles them; a claim spares half for others. */
  #followersOf(batch: SettlementBatch<Row> | undefined): number {
    const { ordering, lanes } = this.#options.store.table
    const key = ordering?.key
    if (batch === undefined || key === undefined || lanes !== undefined) return 0
    return 2 * batch.rows.filter(({ row }) => typeof Reflect.get(row, key) === 'string').length
  }

  #settlementIsDue(now: number, claiming: boolean): boolean {
    const { size, oldestAt } = this.#settlements
    if (size === 0) return false
    const { batch, settleDelayMs } = this.#options.settings()
    return (
      claiming || this.#hurry || size >= batch || now - oldestAt >= settleDelayMs || this.#options.isQuiet()
    )
  }

  /** What can no longer be trusted is not sent (D8). */
  #trustedBatch(now: number): SettlementBatch<Row> | undefined {
    const { settings, isTrusted, onGone } = this.#options
    const batch = this.#settlements.take(settings().batch, now)
    if (batch === undefined) return undefined
    const trusted = batch.rows.map((row) => isTrusted(row, now))
    if (trusted.every(Boolean)) return batch
    batch.rows.forEach((row, i) => {
      if (trusted[i] !== true) onGone(row, { fencedOffAs: batch.outcome })
    })
    const rows = batch.rows.filter((_, i) => trusted[i])
    return rows.length === 0 ? undefined : { ...batch, rows, args: batch.args?.filter((_, i) => trusted[i]) }
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
      let result: Partial<Ended> & Partial<Claim<Row> & { readonly drained: boolean }>
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
      if (batch !== undefined && this.#mayBeOurs(batch, fencedOff)) {
        // What was claimed is not to wait for another statement.
        if (claim !== undefined) this.#claimed(claim, sentAt)
        this.#settled(batch, { ended, fencedOff: await this.#otherwise(batch, fencedOff) }, sentAt)
      } else {
        if (batch !== undefined) this.#settled(batch, { ended, fencedOff }, sentAt)
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

  async #send(
    claimer: Claimer<Row>,
    { batch, limit, lanes }: Turn<Row>,
  ): Promise<Partial<Ended> & Partial<Claim<Row> & { readonly drained: boolean }>> {
    const { leaseMs } = this.#options.settings()
    if (batch === undefined) return claimer.claim({ limit, leaseMs, lanes })
    const settlement = { outcome: batch.outcome, leases: leasesOf(batch), ...argsOf(batch) }
    if (limit > 0) return claimer.exchange(settlement, { limit, leaseMs, lanes })
    return this.#options.store.settle(settlement.outcome, settlement.leases, argsOf(batch))
  }

  #claimed(claim: Claim<Row> & { readonly drained: boolean }, sentAt: number): void {
    const { settings, isWoken, events, onClaimed } = this.#options
    const count = claim.claimed.length
    const { full } = claim
    const now = this.#now()
    this.#pace.found({ full, drained: claim.drained }, now, { ms: settings().pollMs, woken: isWoken() })
    if (count > 0) events.emit('claimed', { ...this.#of, count, full, durationMs: now - sentAt })
    // A look can be full of rows that have to wait behind others: the next one must not be as small.
    if (count > 0 || full) onClaimed(claim, { full, sentAt })
  }

  #mayBeOurs({ outcome }: SettlementBatch<Row>, fencedOff: readonly Lease[]): boolean {
    return fencedOff.length > 0 && this.#options.store.table.outcomes[outcome]?.otherwise !== undefined
  }

  /** Of those that were not settled, some may be ours still: what the outcome asks of the row is no longer true. */
  async #otherwise(batch: SettlementBatch<Row>, fencedOff: readonly Lease[]): Promise<readonly Lease[]> {
    const { store, events } = this.#options
    const otherwise = store.table.outcomes[batch.outcome]?.otherwise
    if (otherwise === undefined || !this.#mayBeOurs(batch, fencedOff)) return fencedOff
    const sentAt = this.#now()
    try {
      const { ended, fencedOff: gone } = await store.settle(otherwise, fencedOff)
      const ids = ended.map(({ id }) => id)
      if (ids.length > 0)
        events.emit('settled', { ...this.#of, outcome: otherwise, ids, durationMs: this.#now() - sentAt })
      return gone
    } catch (error) {
      // Nothing was written for them; they can be claimed again when their leases are over.
      this.#trouble(`settling rows of ${this.#of.table} as ${otherwise}`, error)
      return fencedOff
    }
  }

  #settled(batch: SettlementBatch<Row>, { ended, fencedOff }: Ended, sentAt: number): void {
    const { events, onGone } = this.#options
    const gone = new Set(fencedOff)
    for (const row of batch.rows)
      onGone(row, gone.has(row.lease) ? { fencedOffAs: batch.outcome } : undefined)
    if (ended.length === 0) return
    this.#expectRetries(batch)
    const ids = ended.map(({ id }) => id)
    events.emit('settled', { ...this.#of, outcome: batch.outcome, ids, durationMs: this.#now() - sentAt })
  }

  /** What is to be tried again after a while is looked for then, and not at the next poll. */
  #expectRetries({ args = [] }: SettlementBatch<Row>): void {
    const delays = new Set(args.map((one) => one['delay_ms']))
    const now = this.#now()
    for (const delay of delays) if (typeof delay === 'number') this.#pace.expect(now + delay)
  }

  /** A database that is away, or in trouble, is waited for; a statement that it refuses is looked at row by row. */
  async #failed(error: unknown, batch: SettlementBatch<Row> | undefined): Promise<void> {
    const late = isLeaseholdError(error, 'QUERY_TIMEOUT')
    // Somebody may have a single row of the batch locked; if it is the database, the first rows will tell.
    if (batch !== undefined && (isRefusal(error) || late)) {
      await this.#settleOneByOne(batch)
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

  /**
   * One row that the database refuses to settle so, or that somebody has locked, must not hold up the others. What is
   * refused is left to the reaper; what did not answer is tried again.
   */
  async #settleOneByOne(batch: SettlementBatch<Row>): Promise<void> {
    const { store, onGone } = this.#options
    let unanswered = 0
    for (const [i, row] of batch.rows.entries()) {
      const single = { outcome: batch.outcome, rows: [row], args: batch.args?.slice(i, i + 1) }
      if (unanswered >= MOST_UNANSWERED) {
        this.#settlements.putBack(single, this.#now())
        continue
      }
      try {
        const ended = await store.settle(single.outcome, leasesOf(single), argsOf(single))
        const fencedOff = await this.#otherwise(single, ended.fencedOff)
        this.#settled(single, { ...ended, fencedOff }, this.#now())
        if (ended.advanced === true) this.advanced()
      } catch (error) {
        if (isRefusal(error)) onGone(row, undefined)
        else {
          unanswered += 1
          this.#settlements.putBack(single, this.#now())
        }
        this.#trouble(`settling row ${row.lease.id} of ${this.#of.table}`, error)
      }
    }
    if (unanswered > 0) this.#pace.failed(this.#now(), unanswered >= MOST_UNANSWERED)
  }

  #trouble(what: string, error: unknown): void {
    this.#options.events.emit('trouble', { ...this.#of, what, error })
  }

  #now(): number {
    return this.#options.clock.monotonicNow()
  }
}

function leasesOf({ rows }: SettlementBatch<unknown>): Handling<unknown>['lease'][] {
  return rows.map(({ lease }) => lease)
}

function argsOf({ args }: SettlementBatch<unknown>): { args?: NonNullable<typeof args> } {
  return args === undefined ? {} : { args }
}

/** After so many rows that did not answer it is the database, and not somebody's lock. */
const MOST_UNANSWERED = 2

/** Data, integrity, a trigger's own words, a statement that does not fit: trying again would bring the same. */
const REFUSALS = /^(?:22|23|42|P0)/

function isRefusal(error: unknown): boolean {
  if (error instanceof TypeError) return true
  return (
    error instanceof Error && 'code' in error && typeof error.code === 'string' && REFUSALS.test(error.code)
  )
}
