import type { Clock } from '../clock.ts'
import type { StatementRunner } from './runner.ts'
import type { LeaseStatement } from './statement.ts'

/** For how long a worker claims from a bucket before it is the turn of the next one, if others wait. */
const TURN_MS = 100

/** While some buckets have rows to claim, this often it is found out whether others have. */
const FIND_EVERY_MS = 250

/** From how many buckets one pipeline claims at most, where each has few rows. */
const MAX_TOGETHER = 16

/**
 * A bucket in which rows are due, but none can be claimed, is claimed from after the first of these times, then after twice
 * that, and so on. A wake-up begins anew with the first.
 */
const FIRST_RECHECK_MS = 250
const LONGEST_RECHECK_MS = 5_000

interface Recheck {
  readonly at: number
  readonly afterMs: number
}

/**
 * Decides from which buckets the claims of a worker take rows. One statement finds those in which rows wait. They take
 * turns of 100 ms, one bucket at a time where it fills the claims, and more of them together where each has little.
 */
export class BucketTurns {
  readonly #runner: StatementRunner
  readonly #waitingBuckets: LeaseStatement
  readonly #clock: Clock
  readonly #random: () => number
  readonly #count: () => number
  /** Since when each bucket has its turn. */
  readonly #turns = new Map<number, number>()
  readonly #waiting = new Set<number>()
  /** The buckets in which rows were due, and none could be claimed. */
  readonly #rechecks = new Map<number, Recheck>()
  #together = 1
  #foundAt = Number.NEGATIVE_INFINITY
  #finding: Promise<void> | undefined
  /** When a row is due in a bucket in which none is yet. */
  #dueAt = Number.POSITIVE_INFINITY
  /** How often something may have become claimable: a statement that was sent before does not know of it. */
  #wakes = 0

  constructor(
    runner: StatementRunner,
    waitingBuckets: LeaseStatement,
    {
      clock,
      random = Math.random,
      bucketCount,
    }: { clock: Clock; random?: () => number; bucketCount: () => number },
  ) {
    this.#runner = runner
    this.#waitingBuckets = waitingBuckets
    this.#clock = clock
    this.#random = random
    this.#count = bucketCount
  }

  wake(): void {
    this.#wakes += 1
    this.#foundAt = Number.NEGATIVE_INFINITY
    for (const [bucket, { afterMs }] of this.#rechecks)
      if (afterMs > FIRST_RECHECK_MS)
        this.#rechecks.set(bucket, { at: this.#now() + FIRST_RECHECK_MS, afterMs: FIRST_RECHECK_MS })
  }

  /** The buckets to claim from now. A single one is not looked for. */
  async next(): Promise<readonly number[]> {
    if (this.#count() === 1) return [0]
    const now = this.#now()
    this.#endTurns(now)
    if (this.#turns.size + this.#waiting.size === 0) await this.#find()
    else if (now - this.#foundAt >= FIND_EVERY_MS) this.#find().catch(() => undefined)
    for (const bucket of this.#waiting) {
      if (this.#turns.size >= this.#together) break
      this.#waiting.delete(bucket)
      this.#turns.set(bucket, this.#now())
    }
    const buckets = [...this.#turns]
    // Where there is less room than buckets, each comes first in its turn.
    const [first] = buckets
    if (first !== undefined) {
      this.#turns.delete(first[0])
      this.#turns.set(...first)
    }
    return buckets.map(([bucket]) => bucket)
  }

  /** What a pipeline that claimed from these buckets has found. */
  answered(
    buckets: readonly (number | undefined)[],
    rows: readonly { readonly lease: { readonly bucket?: number | undefined } }[],
    isDrained: (bucket: number | undefined) => boolean,
  ): void {
    if (this.#count() === 1) return
    const found = new Set(rows.map(({ lease }) => lease.bucket))
    const now = this.#now()
    let full = 0
    for (const bucket of buckets) {
      if (bucket === undefined) continue
      if (found.has(bucket)) this.#rechecks.delete(bucket)
      if (!isDrained(bucket)) {
        full += 1
        continue
      }
      this.#turns.delete(bucket)
      if (found.has(bucket)) continue
      const afterMs = Math.min(
        LONGEST_RECHECK_MS,
        Math.max(FIRST_RECHECK_MS, 2 * (this.#rechecks.get(bucket)?.afterMs ?? 0)),
      )
      this.#rechecks.set(bucket, { at: now + afterMs, afterMs })
    }
    this.#together = full > 0 ? Math.max(1, full) : Math.min(MAX_TOGETHER, 2 * this.#together)
  }

  /** No bucket is known in which rows could be claimed. */
  get isDrained(): boolean {
    if (this.#count() === 1) return true
    return this.#turns.size + this.#waiting.size === 0 && this.#foundAt > Number.NEGATIVE_INFINITY
  }

  /** In how long a row is due in one of the others, or one is to be claimed from in which nothing could be claimed. */
  get nextInMs(): number | undefined {
    if (this.#count() === 1) return undefined
    const next = Math.min(this.#dueAt, ...[...this.#rechecks.values()].map(({ at }) => at))
    return next === Number.POSITIVE_INFINITY ? undefined : Math.max(1, next - this.#now())
  }

  #endTurns(now: number): void {
    if (this.#waiting.size === 0) return
    for (const [bucket, since] of this.#turns) {
      if (now - since < TURN_MS) continue
      this.#turns.delete(bucket)
      this.#waiting.add(bucket)
    }
  }

  async #find(): Promise<void> {
    this.#finding ??= this.#findOnce().finally(() => {
      this.#finding = undefined
    })
    return this.#finding
  }

  async #findOnce(): Promise<void> {
    const wakes = this.#wakes
    const [rows = []] = await this.#runner.send([this.#runner.bind(this.#waitingBuckets, {})])
    const now = this.#now()
    if (wakes === this.#wakes) this.#foundAt = now
    const found = rows.flatMap(([bucket, dueInMs]) =>
      typeof dueInMs === 'number' ? [{ bucket: Number(bucket), dueInMs }] : [],
    )
    this.#dueAt = now + Math.min(...found.filter(({ dueInMs }) => dueInMs > 0).map(({ dueInMs }) => dueInMs))
    const due = found.filter(({ dueInMs }) => dueInMs <= 0).map(({ bucket }) => bucket)
    for (const bucket of this.#rechecks.keys()) if (!due.includes(bucket)) this.#rechecks.delete(bucket)
    const claimable = due.filter((bucket) => (this.#rechecks.get(bucket)?.at ?? now) <= now)
    // Workers that start together begin with different buckets.
    const start = Math.floor(this.#random() * claimable.length)
    for (const bucket of [...claimable.slice(start), ...claimable.slice(0, start)])
      if (!this.#turns.has(bucket)) this.#waiting.add(bucket)
  }

  #now(): number {
    return this.#clock.monotonicNow()
  }
}
