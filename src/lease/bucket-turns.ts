import { type Clock, systemClock } from '../clock.ts'
import { nothingClaimed } from './claims.ts'
import { ClaimCursor, type CursorRequest, type Scanned } from './claim-cursor.ts'
import type { Way } from './statements.ts'
import type { Claim, Ended, LeaseStore, Settlement } from './store.ts'

/** A bucket that had nothing more to claim is not claimed from for this time, unless the worker is woken. */
const RECHECK_MS = 250

/** For how long a worker claims from a bucket before it is the turn of the next one, if others wait. */
const TURN_MS = 100

export interface BucketTurnsOptions {
  readonly clock?: Clock
  readonly random?: () => number
  /** How many buckets there are. With one, its rows are claimed without finding it. */
  readonly count: () => number
}

interface Turn {
  readonly bucket: number
  readonly since: number
  /** How many claims from it are on their way. */
  claims: number
}

/**
 * Decides from which bucket each claim of a worker takes rows, in a table that has several. Buckets take turns, a few at a
 * time: as many as a worker has claims on their way. A bucket whose turn is over is claimed from once more when the others
 * have had theirs; until then only the next rows of its ordering keys are claimed, as its rows are settled. When all have
 * had their turn, one statement finds in which buckets rows wait.
 */
export class BucketTurns<Row extends object> {
  readonly #store: LeaseStore<Row>
  readonly #clock: Clock
  readonly #random: () => number
  readonly #count: () => number
  readonly #cursors = new Map<number, ClaimCursor<Row>>()
  /** The turns that are not over, by bucket. */
  readonly #turns = new Map<number, Turn>()
  /** The buckets that are still to have a turn. */
  #waiting: number[] = []
  /** The statement that finds buckets, while it is on its way. */
  #finding: Promise<void> | undefined
  /** The buckets that had nothing more to claim, and when: rows that wait for others are found all the same. */
  readonly #drainedAt = new Map<number, number>()
  #dueInMs: number | undefined

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
  wake(): void {
    this.#drainedAt.clear()
    for (const cursor of this.#cursors.values()) cursor.wake()
  }

  /** The ordering keys of these rows of a bucket may have become free, without a claim of their next rows. */
  keysFreed(rows: readonly string[], bucket = 0): void {
    this.#cursorOf(bucket).keysFreed(rows)
    if (!this.#turns.has(bucket) && !this.#waiting.includes(bucket)) this.#waiting.push(bucket)
  }

  async claim(request: CursorRequest): Promise<Claim<Row> & Scanned> {
    if (this.#count() === 1) return this.#cursorOf(0).claim({ ...request, bucket: 0 })
    const turn = this.#nextTurn() ?? (await this.#turnAfterFinding())
    if (turn === undefined) {
      const dueInMs = this.#dueInMs
      const none = nothingClaimed(request.leaseMs, this.#clock.monotonicNow())
      return { ...none, drained: true, ...(dueInMs === undefined ? {} : { dueInMs }) }
    }
    const { bucket } = turn
    return this.#within(turn, async () => this.#cursorOf(bucket).claim({ ...request, bucket }))
  }

  /** Settles a batch of one bucket, and claims from it, if it has its turn. */
  async settleAndClaim(
    way: Way,
    settlement: Settlement,
    request: CursorRequest,
  ): Promise<Ended & Claim<Row> & Scanned> {
    const bucket = settlement.leases[0]?.bucket ?? 0
    if (this.#count() === 1)
      return this.#cursorOf(bucket).settleAndClaim(way, settlement, { ...request, bucket })
    const turn = this.#turns.get(bucket)
    if (turn !== undefined && !this.#isOver(turn))
      return this.#within(turn, async () =>
        this.#cursorOf(bucket).settleAndClaim(way, settlement, { ...request, bucket }),
      )
    const claim = await this.#store.settleAndClaim(settlement, {
      ...request,
      bucket,
      way,
      continueOnly: true,
    })
    this.keysFreed(claim.freed ?? [], bucket)
    return { ...claim, more: true, drained: false }
  }

  async #within<Result extends Claim<Row> & Scanned>(
    turn: Turn,
    send: () => Promise<Result>,
  ): Promise<Result> {
    turn.claims += 1
    let result: Result
    try {
      result = await send()
    } catch (error) {
      this.#turns.delete(turn.bucket)
      throw error
    } finally {
      turn.claims -= 1
    }
    if (result.drained) {
      this.#turns.delete(turn.bucket)
      this.#drainedAt.set(turn.bucket, this.#clock.monotonicNow())
    }
    // Whether rows wait in other buckets is not known before the next claim finds none.
    return { ...result, drained: false }
  }

  /** A bucket that has its turn and no claim on its way; or the next one that waits for its turn; or any that has its turn. */
  #nextTurn(): Turn | undefined {
    for (const turn of this.#turns.values()) {
      if (!this.#isOver(turn)) continue
      this.#turns.delete(turn.bucket)
      this.#waiting.push(turn.bucket)
    }
    const turns = [...this.#turns.values()]
    const idle = turns.find(({ claims }) => claims === 0)
    if (idle !== undefined) return idle
    const bucket = this.#waiting.shift()
    if (bucket === undefined) return turns[0]
    const turn = { bucket, since: this.#clock.monotonicNow(), claims: 0 }
    this.#turns.set(bucket, turn)
    return turn
  }

  /** As long as no other bucket waits, a turn goes on. */
  #isOver({ since }: Turn): boolean {
    return this.#waiting.length > 0 && this.#clock.monotonicNow() - since >= TURN_MS
  }

  async #turnAfterFinding(): Promise<Turn | undefined> {
    this.#finding ??= this.#find().finally(() => {
      this.#finding = undefined
    })
    await this.#finding
    return this.#nextTurn()
  }

  async #find(): Promise<void> {
    const found = await this.#store.findBuckets()
    const now = this.#clock.monotonicNow()
    const due = found.filter(({ dueInMs }) => dueInMs <= 0).map(({ bucket }) => bucket)
    const later = found.map(({ dueInMs }) => dueInMs).filter((ms) => ms > 0)
    this.#dueInMs = later.length === 0 ? undefined : Math.min(...later)
    const isNew = (bucket: number): boolean =>
      !this.#turns.has(bucket) &&
      !this.#waiting.includes(bucket) &&
      now - (this.#drainedAt.get(bucket) ?? Number.NEGATIVE_INFINITY) >= RECHECK_MS
    // Workers that start together begin with different buckets.
    const start = Math.floor(this.#random() * due.length)
    this.#waiting.push(...[...due.slice(start), ...due.slice(0, start)].filter(isNew))
  }

  #cursorOf(bucket: number): ClaimCursor<Row> {
    const known = this.#cursors.get(bucket)
    if (known !== undefined) return known
    const cursor = new ClaimCursor(this.#store, this.#clock)
    this.#cursors.set(bucket, cursor)
    return cursor
  }
}
