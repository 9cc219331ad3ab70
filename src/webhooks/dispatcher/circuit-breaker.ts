/** Stops attempts to an endpoint that keeps failing, and probes it until it answers. */
import { unknownNames } from '../../nearest.ts'
import { LeaseholdError } from '../../errors.ts'

export interface CircuitBreakerSettings {
  /** How many failed attempts in a row open the circuit. */
  readonly failureThreshold: number
  /** How long the circuit stays open the first time. It stays open twice as long after every failed probe. */
  readonly openMs: number
  /** The longest time that the circuit stays open. */
  readonly maxOpenMs: number
}

/** The circuit breaker of every endpoint, unless the dispatcher is given another. */
export const DEFAULT_CIRCUIT_BREAKER: CircuitBreakerSettings = {
  failureThreshold: 5,
  openMs: 10_000,
  maxOpenMs: 600_000,
}

export function circuitBreakerSettings(given: Partial<CircuitBreakerSettings> = {}): CircuitBreakerSettings {
  const settings = { ...DEFAULT_CIRCUIT_BREAKER, ...given }
  const { failureThreshold, openMs, maxOpenMs } = settings
  const problems = [
    ...unknownNames(given, Object.keys(DEFAULT_CIRCUIT_BREAKER), 'option').map(
      (problem) => `circuitBreaker has the ${problem}`,
    ),
    ...(Number.isInteger(failureThreshold) && failureThreshold >= 1
      ? []
      : [`circuitBreaker.failureThreshold is ${failureThreshold}, but must be a whole number from 1`]),
    ...(openMs > 0 ? [] : [`circuitBreaker.openMs is ${openMs}, but must be above 0`]),
    ...(maxOpenMs >= openMs
      ? []
      : [`circuitBreaker.maxOpenMs is ${maxOpenMs}, but must be at least openMs (${openMs})`]),
  ]
  if (problems.length === 0) return settings
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The settings of the circuit breaker are invalid: ${problems.join('; ')}.`,
  )
}

/** How long it may take until an opened circuit is in the database. */
const STORED_WITHIN_MS = 2_000

/** A change that must be stored, so that all dispatchers know it. */
export type CircuitChange =
  | { readonly to: 'open'; readonly failures: number; readonly openMs: number }
  | { readonly to: 'closed' }

/** The circuit of an endpoint as it is stored. */
export interface StoredCircuit {
  readonly isOpen: boolean
  readonly openForMs: number
  readonly failures: number
}

/**
 * The circuit of one endpoint. Closed: deliveries are attempted. Open: none is attempted until `openUntil`. Half-open:
 * after that, one delivery is attempted as a probe; it closes the circuit, or opens it for longer.
 */
export class CircuitBreaker {
  readonly #settings: CircuitBreakerSettings
  /** Failed attempts in a row. */
  #failures = 0
  /** How often in a row the circuit was opened; 0 when it is closed. */
  #openings = 0
  /** On the monotonic clock. */
  #openUntil = 0
  #openedAt = 0

  constructor(settings: CircuitBreakerSettings) {
    this.#settings = settings
  }

  state(now: number): 'closed' | 'open' | 'half-open' {
    if (this.#openings === 0) return 'closed'
    return now < this.#openUntil ? 'open' : 'half-open'
  }

  /** When an open circuit becomes half-open. */
  get openUntil(): number {
    return this.#openUntil
  }

  recordSuccess(): CircuitChange | undefined {
    const wasClosed = this.#openings === 0
    this.#failures = 0
    this.#openings = 0
    return wasClosed ? undefined : { to: 'closed' }
  }

  recordFailure(now: number): CircuitChange | undefined {
    this.#failures += 1
    const state = this.state(now)
    // Attempts that were in flight when the circuit opened say nothing new.
    if (state === 'open') return undefined
    if (state === 'closed' && this.#failures < this.#settings.failureThreshold) return undefined
    const openMs = Math.min(this.#settings.maxOpenMs, this.#settings.openMs * 2 ** this.#openings)
    this.#openings += 1
    this.#openedAt = now
    this.#openUntil = now + openMs
    return { to: 'open', failures: this.#failures, openMs }
  }

  /** Takes over the stored state: another dispatcher, or an earlier process, may have opened or closed the circuit. */
  synchronize(stored: StoredCircuit, now: number): void {
    const isClosed = this.#openings === 0
    if (!stored.isOpen) {
      // Another dispatcher's probe succeeded, or an operator closed the circuit. Unless it was opened here a moment
      // ago and that is not stored yet.
      if (!isClosed && now - this.#openedAt >= STORED_WITHIN_MS) this.recordSuccess()
      return
    }
    if (isClosed) {
      // Every failed probe added one failure and one opening.
      this.#openings = Math.max(1, stored.failures - this.#settings.failureThreshold + 1)
      this.#failures = Math.max(this.#failures, stored.failures)
    }
    this.#openUntil = Math.max(this.#openUntil, now + stored.openForMs)
  }
}
