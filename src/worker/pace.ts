import { pauseAfter } from '../postgres/back-off.ts'

/** After a wake-up, looks again soon: a neighbour's transaction may commit a moment later. */
const SECOND_LOOKS_MS = [25, 100]

/** A worker that is woken by NOTIFY polls only in case a notification is lost. */
const WOKEN_STRETCH = 5

/** Moments at which rows are known to become due: as many as are worth remembering, and no closer together than this. */
const MOST_EXPECTED = 200
const EXPECTED_STEP_MS = 20

const DATABASE_AWAY = { firstMs: 100, longestMs: 5_000 }

/** When to look for rows: at once while there are more, after a while when there are none, later when nothing answers. */
export class Pace {
  readonly #random: () => number
  #looks = 0
  #lastLookWasFull = true
  #lookAt = 0
  #secondLooks: number[] = []
  /** In ascending order. */
  #expected: number[] = []
  #failures = 0
  #retryAt = 0
  #wasAway = false

  constructor(random: () => number) {
    this.#random = random
  }

  /** As long as there is a backlog, loops look side by side; otherwise one look at a time tells all there is. */
  mayLook(now: number): boolean {
    const due = now >= this.#lookAt || now >= (this.#expected[0] ?? Number.POSITIVE_INFINITY)
    return due && now >= this.#retryAt && (this.#looks === 0 || this.#lastLookWasFull)
  }

  /** Whether the database is being left alone because it did not answer. */
  isAway(now: number): boolean {
    return now < this.#retryAt
  }

  /** The next moment at which something may be due by itself. */
  nextAt(now: number): number {
    const next = Math.max(Math.min(this.#lookAt, this.#expected[0] ?? this.#lookAt), this.#retryAt)
    return next > now ? next : Number.POSITIVE_INFINITY
  }

  get isLooking(): boolean {
    return this.#looks > 0
  }

  began(now: number): void {
    this.#looks += 1
    const later = this.#expected.findIndex((at) => at > now)
    this.#expected = later === -1 ? [] : this.#expected.slice(later)
  }

  /** A row will be due then: a poll might find it much later. */
  expect(at: number): void {
    const rounded = Math.ceil(at / EXPECTED_STEP_MS) * EXPECTED_STEP_MS
    const later = this.#expected.findIndex((known) => known >= rounded)
    if (later === -1) this.#expected.push(rounded)
    else if (this.#expected[later] !== rounded) this.#expected.splice(later, 0, rounded)
    if (this.#expected.length > MOST_EXPECTED) this.#expected.pop()
  }

  ended(): void {
    this.#looks -= 1
  }

  /** Nothing is left: the next look is a poll, jittered upwards so that many workers spread. */
  found(look: { full: boolean; drained: boolean }, now: number, poll: { ms: number; woken: boolean }): void {
    this.#lastLookWasFull = look.full
    const pollMs = poll.ms * (poll.woken ? WOKEN_STRETCH : 1) * (1 + this.#random() / 2)
    this.#lookAt = look.drained ? now + (this.#secondLooks.shift() ?? pollMs) : 0
  }

  /** No look before this. */
  rest(until: number): void {
    this.#lookAt = Math.max(this.#lookAt, until)
    this.#expected = this.#expected.filter((at) => at >= until)
  }

  /** There is room where there was none: the next look is due. */
  lookNow(): void {
    this.#lookAt = 0
  }

  wake(): void {
    this.#secondLooks = [...SECOND_LOOKS_MS]
    this.#lookAt = 0
  }

  /** How long the database is left alone. */
  failed(now: number, away: boolean): number {
    this.#failures += 1
    this.#wasAway ||= away
    const retryInMs = pauseAfter(this.#failures, DATABASE_AWAY, this.#random)
    this.#retryAt = now + retryInMs
    return retryInMs
  }

  /** True when it had been away. */
  reached(): boolean {
    const wasAway = this.#wasAway
    this.#failures = 0
    this.#retryAt = 0
    this.#wasAway = false
    return wasAway
  }
}
