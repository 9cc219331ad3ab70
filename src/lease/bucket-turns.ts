import { type Clock, systemClock } from '../clock.ts'
import { nothingClaimed } from './claims.ts'
import { ClaimCursor, type CursorRequest, type Scanned } from './claim-cursor.ts'
import { SUCCESS, type Way } from './statements.ts'
import type { Claim, Ended, LeaseStore, Settlement } from './store.ts'

/** For how long a worker claims from a bucket before it is the turn of the next one, if others wait. */
const TURN_MS = 100

/** While some buckets have rows to claim, this often it is found out whether others have. */
const FIND_EVERY_MS = 250

/**
 * If a bucket turns out to be empty so long after it was found, other workers have probably taken rows elsewhere too: the
 * buckets are found anew.
 */
const OUTDATED_AFTER_MS = 25

/**
 * A bucket in which rows are due, but none can be claimed, is claimed from after the first of these times, then after twice
 * that, and so on. A wake-up begins anew with the first.
 */
const FIRST_RECHECK_MS = 250
const LONGEST_RECHECK_MS = 5_000

/**
 * Why something may have become claimable: rows have arrived, perhaps; there is room for rows that there was none for; or it
 * is time for what was expected to become due.
 */
export type WakeReason = 'news' | 'room' | 'time'

/** Where the claims of a worker start. */
export interface ClaimSource<Row extends object> extends Pick<ClaimCursor<Row>, 'claim' | 'settleAndClaim'> {
  wake(reason: WakeReason): void
  keysFreed(rows: readonly string[], bucket?: number): void
}

export interface BucketTurnsOptions {
  readonly clock?: Clock
  readonly random?: () => number
  /** How many buckets there are; infinite where that is not known. With one, its rows are claimed without finding it. */
  readonly count: () => number
}

interface Turn {
  readonly bucket: number
  readonly since: number
  /** How many claims from it are on their way. */
  claims: number
  /** Nothing more can be claimed, apart from the next rows of the ordering keys that are settled. */
  isDrained: boolean
  /** Whether rows were claimed since rows were found in it. */
  hasTaken: boolean
}

interface Recheck {
  readonly since: number
  afterMs: number
}

/**
 * Decides from which bucket each claim of a worker takes rows, in a table that has several. Buckets take turns of 100 ms. A
 * further turn begins when each open one has a claim on its way, or nothing more to claim. In its turn a bucket is claimed
 * from as a table with one bucket is. When its turn is over and others wait, its finished rows are settled without a claim,
 * so that their room goes to the others. One statement finds in which buckets rows wait.
 */
export class BucketTurns<Row extends object> implements ClaimSource<Row> {
  readonly #store: LeaseStore<Row>
  readonly #clock: Clock
  readonly #random: () => number
  readonly #count: () => number
  readonly #cursors = new Map<number, ClaimCursor<Row>>()
  /** The turns that are not over, by bucket. */
  readonly #turns = new Map<number, Turn>()
  /** The buckets that are still to have a turn, in their order. */
  readonly #waiting = new Set<number>()
  /** The buckets in which rows were due, and none could be claimed. */
  readonly #rechecks = new Map<number, Recheck>()
  /** The statement that finds buckets, while it is on its way. */
  #finding: Promise<void> | undefined
  #foundAt = Number.NEGATIVE_INFINITY
  /** The buckets that wait for their turn may have nothing to claim any more. */
  #isOutdated = false
  /** In how long a row is due in a bucket in which none is yet, when buckets were last found. */
  #dueInMs = Number.POSITIVE_INFINITY
  /** How often something may have become claimable: a statement that was sent before does not know of it. */
  #wakes = 0
  /** How often there was room that there had not been. */
  #rooms = 0

  constructor(
    store: LeaseStore<Row>,
    { clock = systemClock, random = Math.random, count }: BucketTurnsOptions,
  ) {
    this.#store = store
    this.#clock = clock
    this.#random = random
    this.#count = count
  }

  /** Something may have become claimable. */
  wake(reason: WakeReason): void {
    this.#wakes += 1
    this.#foundAt = Number.NEGATIVE_INFINITY
    // What could not be claimed for want of room can be now.
    if (reason === 'room') {
      this.#rooms += 1
      this.#rechecks.clear()
    }
    if (reason === 'news') for (const recheck of this.#rechecks.values()) recheck.afterMs = FIRST_RECHECK_MS
    if (this.#count() === 1) this.#cursorOf(0).wake()
  }

  /** The ordering keys of these rows of a bucket may have become free, without a claim of their next rows. */
  keysFreed(rows: readonly string[], bucket = 0): void {
    if (rows.length === 0) return
    this.#cursorOf(bucket).keysFreed(rows)
    this.#rechecks.delete(bucket)
    const turn = this.#turns.get(bucket)
    if (turn === undefined) this.#waiting.add(bucket)
    else turn.isDrained = false
  }

  async claim(request: CursorRequest): Promise<Claim<Row> & Scanned> {
    if (this.#count() === 1) return this.#cursorOf(0).claim({ ...request, bucket: 0 })
    const wakes = this.#wakes
    if (this.#isOutdated) await this.#find()
    const turn = this.#nextTurn() ?? (await this.#turnAfterFinding())
    if (turn === undefined) {
      const none = nothingClaimed(request.leaseMs, this.#clock.monotonicNow())
      const dueInMs = Math.min(this.#dueInMs, this.#recheckInMs())
      // The statement that found buckets may have been sent before the last wake-up.
      const drained = wakes === this.#wakes && this.#foundAt > Number.NEGATIVE_INFINITY
      return { ...none, drained, ...(dueInMs === Infinity ? {} : { dueInMs }) }
    }
    const { bucket } = turn
    return this.#within(turn, async () => this.#cursorOf(bucket).claim({ ...request, bucket }))
  }

  /** Settles a batch of one bucket, and claims from it if that does not take room from others that wait. */
  async settleAndClaim(
    way: Way,
    settlement: Settlement,
    request: CursorRequest,
  ): Promise<Ended & Claim<Row> & Scanned> {
    const { leases, args } = settlement
    const bucket = leases[0]?.bucket ?? 0
    const cursor = this.#cursorOf(bucket)
    if (this.#count() === 1) return cursor.settleAndClaim(way, settlement, { ...request, bucket })
    const turn = this.#turnOf(bucket)
    if (turn !== undefined)
      return this.#within(turn, async () => cursor.settleAndClaim(way, settlement, { ...request, bucket }))
    const none = nothingClaimed(request.leaseMs, this.#clock.monotonicNow())
    const ended = await this.#store.settle(SUCCESS, leases, args === undefined ? {} : { args })
    if (way === 'key')
      this.keysFreed(
        ended.ended.map(({ id }) => id),
        bucket,
      )
    return { ...none, ...ended, more: true, drained: false }
  }

  async #within<Result extends Claim<Row> & Scanned>(
    turn: Turn,
    send: () => Promise<Result>,
  ): Promise<Result> {
    const { bucket } = turn
    const rooms = this.#rooms
    turn.claims += 1
    const result = await send().finally(() => {
      turn.claims -= 1
    })
    if (result.claimed.length > 0) {
      turn.hasTaken = true
      this.#rechecks.delete(bucket)
    } else if (result.drained && !turn.hasTaken && rooms === this.#rooms) {
      const since = this.#clock.monotonicNow()
      const { afterMs = 0 } = this.#rechecks.get(bucket) ?? {}
      const longer = Math.min(Math.max(FIRST_RECHECK_MS, 2 * afterMs), LONGEST_RECHECK_MS)
      this.#rechecks.set(bucket, { since, afterMs: longer })
      if (since - this.#foundAt >= OUTDATED_AFTER_MS) this.#isOutdated = true
    }
    turn.isDrained = result.drained
    // Whether rows wait in other buckets is not known before the next claim finds none.
    return { ...result, drained: false }
  }

  /**
   * A bucket that has its turn, more rows and no claim on its way; or the next one that waits for its turn; or any that has
   * its turn and more rows.
   */
  #nextTurn(): Turn | undefined {
    this.#findIfDue()
    this.#endTurns()
    const open = [...this.#turns.values()].filter(({ isDrained }) => !isDrained)
    const idle = open.find(({ claims }) => claims === 0)
    if (idle !== undefined) return idle
    const [bucket] = this.#waiting
    return bucket === undefined ? open[0] : this.#begin(bucket)
  }

  /** The turn of this bucket, if it is not over; it gets one if no other waits for its turn. */
  #turnOf(bucket: number): Turn | undefined {
    this.#findIfDue()
    this.#endTurns()
    const turn = this.#turns.get(bucket)
    if (turn !== undefined) return turn
    const isNext = this.#waiting.size === 0 || (this.#waiting.size === 1 && this.#waiting.has(bucket))
    return isNext ? this.#begin(bucket) : undefined
  }

  #begin(bucket: number): Turn {
    const since = this.#clock.monotonicNow()
    const turn = { bucket, since, claims: 0, isDrained: false, hasTaken: false }
    this.#waiting.delete(bucket)
    this.#turns.set(bucket, turn)
    return turn
  }

  /** Ends turns that have lasted for 100 ms, if nothing more can be claimed in them or another bucket waits. */
  #endTurns(): void {
    const now = this.#clock.monotonicNow()
    for (const [bucket, { since, isDrained }] of this.#turns) {
      if (now - since < TURN_MS || (!isDrained && this.#waiting.size === 0)) continue
      this.#turns.delete(bucket)
      if (!isDrained) this.#waiting.add(bucket)
    }
  }

  async #turnAfterFinding(): Promise<Turn | undefined> {
    await this.#find()
    return this.#nextTurn()
  }

  /** Does not wait for the answer. A failure shows in the next claim as well. */
  #findIfDue(): void {
    const isDue = this.#clock.monotonicNow() - this.#foundAt >= FIND_EVERY_MS
    if (isDue && this.#turns.size > 0) this.#find().catch(() => undefined)
  }

  async #find(): Promise<void> {
    this.#finding ??= this.#findOnce().finally(() => {
      this.#finding = undefined
    })
    return this.#finding
  }

  async #findOnce(): Promise<void> {
    const wakes = this.#wakes
    const found = await this.#store.findBuckets()
    const now = this.#clock.monotonicNow()
    if (wakes === this.#wakes) this.#foundAt = now
    const later = found.map(({ dueInMs }) => dueInMs).filter((ms) => ms > 0)
    this.#dueInMs = Math.min(...later)
    const allDue = found.filter(({ dueInMs }) => dueInMs <= 0)
    this.#isOutdated = false
    this.#forgetAllBut(new Set(allDue.map(({ bucket }) => bucket)))
    const due = allDue.filter(({ bucket }) => this.#mayClaimFrom(bucket, now))
    // Workers that start together begin with different buckets.
    const start = Math.floor(this.#random() * due.length)
    for (const { bucket } of [...due.slice(start), ...due.slice(0, start)]) {
      this.#cursorOf(bucket).wake()
      const turn = this.#turns.get(bucket)
      if (turn === undefined) this.#waiting.add(bucket)
      else if (turn.isDrained) reopen(turn)
    }
  }

  /** Nothing is due in a bucket that is not among these. */
  #forgetAllBut(due: ReadonlySet<number>): void {
    for (const bucket of this.#rechecks.keys()) if (!due.has(bucket)) this.#rechecks.delete(bucket)
    for (const bucket of this.#waiting) if (!due.has(bucket)) this.#waiting.delete(bucket)
  }

  #mayClaimFrom(bucket: number, now: number): boolean {
    const recheck = this.#rechecks.get(bucket)
    return recheck === undefined || now - recheck.since >= recheck.afterMs
  }

  /** In how long the first bucket is to be claimed from in which nothing could be claimed. */
  #recheckInMs(): number {
    const now = this.#clock.monotonicNow()
    const times = [...this.#rechecks.values()].map(({ since, afterMs }) => since + afterMs - now)
    return Math.max(1, Math.min(...times))
  }

  #cursorOf(bucket: number): ClaimCursor<Row> {
    const known = this.#cursors.get(bucket)
    if (known !== undefined) return known
    const cursor = new ClaimCursor(this.#store, this.#clock)
    this.#cursors.set(bucket, cursor)
    return cursor
  }
}

/** Rows were found in a bucket that had nothing more to claim. */
function reopen(turn: Turn): void {
  turn.isDrained = false
  turn.hasTaken = false
}
