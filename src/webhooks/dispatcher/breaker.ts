import { LeaseholdError } from '../../errors.ts'

export interface BreakerSettings {
  /** So many failed attempts in a row open the circuit. */
  readonly failures: number
  /** How long it stays open the first time; twice as long after every probe that fails. */
  readonly firstMs: number
  readonly longestMs: number
}

export const DEFAULT_BREAKER: BreakerSettings = { failures: 5, firstMs: 10_000, longestMs: 600_000 }

export function usableBreaker(given: Partial<BreakerSettings> = {}): BreakerSettings {
  const settings = { ...DEFAULT_BREAKER, ...given }
  const { failures, firstMs, longestMs } = settings
  const problems = [
    ...(Number.isInteger(failures) && failures >= 1
      ? []
      : [`breaker.failures is ${failures}, but must be a whole number from 1`]),
    ...(firstMs > 0 ? [] : [`breaker.firstMs is ${firstMs}, but must be above 0`]),
    ...(longestMs >= firstMs
      ? []
      : [`breaker.longestMs is ${longestMs}, but must be at least firstMs (${firstMs})`]),
  ]
  if (problems.length === 0) return settings
  throw new LeaseholdError('SETTING_INVALID', `The circuit breaker cannot work: ${problems.join('; ')}.`)
}

/** An opening is in the database after so long. */
const STORED_WITHIN_MS = 2_000

/** What the database is to be told of a circuit, so that every dispatcher knows. */
export type BreakerChange =
  | { readonly circuit: 'opened'; readonly failures: number; readonly forMs: number }
  | { readonly circuit: 'closed' }

/**
 * The circuit of one endpoint. Closed: attempts are made. Open: none is made until its time is over. Then it is half
 * open: one attempt is made as a probe, and closes it or opens it again for longer.
 */
export class Breaker {
  readonly #settings: BreakerSettings
  #failures = 0
  /** How often in a row it was opened; 0: it is closed. */
  #opened = 0
  /** On the monotonic clock. */
  #openUntil = 0
  #openedAt = 0

  constructor(settings: BreakerSettings) {
    this.#settings = settings
  }

  get isClosed(): boolean {
    return this.#opened === 0
  }

  /** How many attempts may be on their way: none, a probe, or as many as there is other room for. */
  room(now: number): number {
    if (this.isClosed) return Number.POSITIVE_INFINITY
    return now < this.#openUntil ? 0 : 1
  }

  /** When a circuit that is open lets a probe through. */
  get openUntil(): number {
    return this.#openUntil
  }

  succeeded(): BreakerChange | undefined {
    const wasOpen = !this.isClosed
    this.#failures = 0
    this.#opened = 0
    return wasOpen ? { circuit: 'closed' } : undefined
  }

  /** Attempts that were under way when it opened say nothing new. */
  failed(now: number): BreakerChange | undefined {
    this.#failures += 1
    if (this.isClosed ? this.#failures < this.#settings.failures : now < this.#openUntil) return undefined
    const { firstMs, longestMs } = this.#settings
    const forMs = Math.min(longestMs, firstMs * 2 ** this.#opened)
    this.#opened += 1
    this.#openedAt = now
    this.#openUntil = now + forMs
    return { circuit: 'opened', failures: this.#failures, forMs }
  }

  /** What the database says: another dispatcher, or one before this, may have opened or closed it. */
  learn(
    stored: { readonly failing: boolean; readonly openForMs: number; readonly failures: number },
    now: number,
  ): void {
    if (!stored.failing) {
      // Somebody has closed it: another dispatcher's probe was answered, or an operator knows better. Unless it was
      // opened here a moment ago, and that is not stored yet.
      if (!this.isClosed && now - this.#openedAt >= STORED_WITHIN_MS) this.succeeded()
      return
    }
    if (this.isClosed) {
      // Every probe that failed was one failure more, and one opening more.
      this.#opened = Math.max(1, stored.failures - this.#settings.failures + 1)
      this.#failures = Math.max(this.#failures, stored.failures)
    }
    this.#openUntil = Math.max(this.#openUntil, now + stored.openForMs)
  }
}
