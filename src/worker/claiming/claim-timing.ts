import { pauseAfter } from '../../postgres/failures.ts'

/** After a wake-up two further claims follow soon: another transaction may commit a moment later. */
const CLAIMS_AFTER_WAKE_MS = [25, 100]

/**
 * A notification reaches all processes at once, and one of them can claim what it announces. So only about so many claim
 * at once. The others follow once each, at random within `FOLLOW_MS` for each of them: those that claimed at once may have
 * no room, or leave rows to others (docs/decisions/014-wake-ups.md).
 */
const CLAIM_AT_ONCE = 3
const FOLLOW_MS = 25
/** The claims of so many others come often enough that those who claim at once need not claim a second time. */
const ENOUGH_OTHERS = 8

/** A worker that is woken by NOTIFY polls only in case a notification is lost. */
const POLL_FACTOR_WHEN_WOKEN = 5

/** How many moments at which rows become due are remembered, and how close together they may be. */
const MAX_EXPECTED = 200
const EXPECTED_STEP_MS = 20

/**
 * The pause after a claim that found few rows: a claim that finds five costs as much as one that finds fifty. The fewer there
 * are, the less load there is, and the shorter it is.
 */
const MAX_PAUSE_MS = 10
const PAUSE_PER_ROW_MS = 2

const DATABASE_BACKOFF = { firstMs: 100, longestMs: 5_000 }

/** When to claim: at once while there are more rows, after a poll when there were none, later when nothing answers. */
export class ClaimTiming {
  readonly #random: () => number
  /** How many claims are on their way. */
  #claims = 0
  /** The last claim that was answered did not find all rows. */
  #sawMore = false
  #claimAt = 0
  /** The end of the pause after the last claim, if that found few rows. Wake-ups do not shorten it. */
  #pausedUntil = 0
  #claimsAfterWake: number[] = []
  /** In ascending order. */
  #expected: number[] = []
  #failures = 0
  #retryAt = 0
  #wasAway = false

  constructor(random: () => number) {
    this.#random = random
  }

  mayClaim(now: number): boolean {
    const due = now >= this.#claimAt || now >= (this.#expected[0] ?? Number.POSITIVE_INFINITY)
    return due && now >= this.#retryAt
  }

  /** No statement has succeeded since the last one failed. */
  get isFailing(): boolean {
    return this.#failures > 0
  }

  /** The database did not answer, and nothing is sent for a while. */
  isBackingOff(now: number): boolean {
    return now < this.#retryAt
  }

  /** The next moment at which a claim is due without anything happening. */
  nextAt(now: number): number {
    const next = Math.max(Math.min(this.#claimAt, this.#expected[0] ?? this.#claimAt), this.#retryAt)
    return next > now ? next : Number.POSITIVE_INFINITY
  }

  /** There were more rows than the last claim had room for: while one claim is on its way, a second one finds others. */
  get sawMore(): boolean {
    return this.#sawMore
  }

  /** A claim was sent and is not answered yet. */
  get isClaiming(): boolean {
    return this.#claims > 0
  }

  /** A claim is sent. True when a row has become due that was expected to. */
  claimSent(now: number): boolean {
    this.#claims += 1
    const later = this.#expected.findIndex((at) => at > now)
    const passed = later === -1 ? this.#expected.length : later
    this.#expected.splice(0, passed)
    return passed > 0
  }

  /** A row becomes due at this moment; a poll might find it much later. */
  expect(at: number): void {
    const rounded = Math.ceil(at / EXPECTED_STEP_MS) * EXPECTED_STEP_MS
    const later = this.#expected.findIndex((known) => known >= rounded)
    if (later === -1) this.#expected.push(rounded)
    else if (this.#expected[later] !== rounded) this.#expected.splice(later, 0, rounded)
    if (this.#expected.length > MAX_EXPECTED) this.#expected.pop()
  }

  claimReturned(): void {
    this.#claims -= 1
  }

  /**
   * A claim was answered. While there are more rows the next one is due at once. One that found some, and no more, is followed
   * by a pause, so that the next one finds several. After one that found nothing the next claim is a poll, jittered upwards so
   * that many workers spread out.
   */
  scanned(
    { found, more, drained }: { readonly found: number; readonly more: boolean; readonly drained: boolean },
    now: number,
    poll: { readonly ms: number; readonly woken: boolean },
  ): void {
    const pollMs = poll.ms * (poll.woken ? POLL_FACTOR_WHEN_WOKEN : 1) * (1 + this.#random() / 2)
    this.#sawMore = more
    this.#pausedUntil = more ? 0 : now + Math.min(MAX_PAUSE_MS, found * PAUSE_PER_ROW_MS)
    if (more || found > 0) this.#claimAt = this.#pausedUntil
    else this.#claimAt = drained ? now + (this.#claimsAfterWake.shift() ?? pollMs) : 0
  }

  /** No claim before the next poll, or before a row becomes due that is expected to. */
  restUntilPoll(now: number, pollMs: number): void {
    this.rest(Math.min(now + pollMs, this.#expected.find((at) => at > now) ?? Number.POSITIVE_INFINITY))
  }

  /** No claim before this. */
  rest(until: number): void {
    this.#claimAt = Math.max(this.#claimAt, until)
    const isDueBefore = this.#expected.some((at) => at < until)
    this.#expected = this.#expected.filter((at) => at >= until)
    if (isDueBefore && Number.isFinite(until)) this.expect(until)
  }

  /** The next claim is due at once. */
  claimNow(): void {
    this.#claimAt = 0
  }

  /** True: a claim is due at once. Otherwise soon, because other workers, of so many in all, claim first. */
  wake(now: number, workers = 1): boolean {
    if (workers <= CLAIM_AT_ONCE || this.#random() * workers < CLAIM_AT_ONCE) {
      const others = workers - CLAIM_AT_ONCE
      this.#claimsAfterWake = others < ENOUGH_OTHERS ? [...CLAIMS_AFTER_WAKE_MS] : []
      this.#claimAt = this.#pausedUntil
      return true
    }
    const withinMs = workers * FOLLOW_MS
    // One claim finds what any number of wake-ups before it announced.
    if ((this.#expected[0] ?? Number.POSITIVE_INFINITY) > now + withinMs)
      this.expect(now + this.#random() * withinMs)
    return false
  }

  /**
   * A statement failed. Returns how long nothing is sent. Then a claim is due, whatever made the failed one due: it also
   * finds out whether handlers may be started.
   */
  failed(now: number, away: boolean): number {
    this.#failures += 1
    this.#claimAt = 0
    this.#wasAway ||= away
    this.#sawMore = false
    const retryInMs = pauseAfter(this.#failures, DATABASE_BACKOFF, this.#random)
    this.#retryAt = now + retryInMs
    return retryInMs
  }

  /** A statement succeeded. True when the database could not be reached before. */
  succeeded(): boolean {
    const wasAway = this.#wasAway
    this.#failures = 0
    this.#retryAt = 0
    this.#wasAway = false
    return wasAway
  }
}
