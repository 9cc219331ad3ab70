import { pauseAfter } from '../postgres/back-off.ts'

/** After a wake-up, looks again soon: a neighbour's transaction may commit a moment later. */
const SECOND_LOOKS_MS = [25, 100]

/** A worker that is woken by NOTIFY polls only in case a notification is lost. */
const WOKEN_STRETCH = 5

const DATABASE_AWAY = { firstMs: 100, longestMs: 5_000 }

/** When to look for rows: at once while there are more, after a while when there are none, later when nothing answers. */
export class Pace {
  readonly #random: () => number
  #looks = 0
  #lastLookWasFull = true
  #lookAt = 0
  #secondLooks: number[] = []
  #failures = 0
  #retryAt = 0
  #wasAway = false

  constructor(random: () => number) {
    this.#random = random
  }

  /** As long as there is a backlog, loops look side by side; otherwise one look at a time tells all there is. */
  mayLook(now: number): boolean {
    return now >= this.#lookAt && now >= this.#retryAt && (this.#looks === 0 || this.#lastLookWasFull)
  }

  /** Whether the database is being left alone because it did not answer. */
  isAway(now: number): boolean {
    return now < this.#retryAt
  }

  /** The next moment at which something may be due by itself. */
  nextAt(now: number): number {
    const next = Math.max(this.#lookAt, this.#retryAt)
    return next > now ? next : Number.POSITIVE_INFINITY
  }

  get isLooking(): boolean {
    return this.#looks > 0
  }

  began(): void {
    this.#looks += 1
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
