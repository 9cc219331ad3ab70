/** How many requests a caller may send: a bucket of tokens for each, in the memory of this process. */
import type { Clock } from '../../clock.ts'

export interface RateLimit {
  /** Requests at once. */
  readonly burst: number
  readonly perSecond: number
}

export interface Allowance {
  readonly allowed: boolean
  readonly limit: number
  readonly remaining: number
  /** When all of it is available again. */
  readonly resetInSeconds: number
  /** When the next request is allowed. */
  readonly retryInSeconds: number
}

interface Bucket {
  tokens: number
  at: number
}

/** More callers than this at a time are not told apart: the oldest are forgotten, and start anew. */
const MAX_CALLERS = 10_000

export class RateLimiter {
  readonly #limit: RateLimit
  readonly #clock: Clock
  readonly #buckets = new Map<string, Bucket>()

  constructor(limit: RateLimit, clock: Clock) {
    this.#limit = limit
    this.#clock = clock
  }

  /** Takes a token of this caller, if there is one. */
  take(caller: string): Allowance {
    const allowance = this.look(caller)
    if (!allowance.allowed) return allowance
    const bucket = this.#refilled(caller)
    bucket.tokens -= 1
    this.#remember(caller, bucket)
    return this.#allowance(bucket, true)
  }

  /** Whether there is a token, without taking it. */
  look(caller: string): Allowance {
    const bucket = this.#refilled(caller)
    return this.#allowance(bucket, bucket.tokens >= 1)
  }

  #refilled(caller: string): Bucket {
    const { burst, perSecond } = this.#limit
    const now = this.#clock.monotonicNow()
    const known = this.#buckets.get(caller) ?? { tokens: burst, at: now }
    return { tokens: Math.min(burst, known.tokens + ((now - known.at) / 1_000) * perSecond), at: now }
  }

  #remember(caller: string, bucket: Bucket): void {
    this.#buckets.delete(caller)
    this.#buckets.set(caller, bucket)
    const [oldest] = this.#buckets.keys()
    if (this.#buckets.size > MAX_CALLERS && oldest !== undefined) this.#buckets.delete(oldest)
  }

  #allowance({ tokens }: Bucket, allowed: boolean): Allowance {
    const { burst, perSecond } = this.#limit
    return {
      allowed,
      limit: burst,
      remaining: Math.max(0, Math.floor(tokens)),
      resetInSeconds: Math.ceil((burst - tokens) / perSecond),
      retryInSeconds: Math.max(1, Math.ceil((1 - tokens) / perSecond)),
    }
  }
}

/** As the drafts of the IETF name them, and most clients know them. */
export function rateLimitHeaders({ limit, remaining, resetInSeconds }: Allowance): Record<string, string> {
  return {
    'ratelimit-limit': String(limit),
    'ratelimit-remaining': String(remaining),
    'ratelimit-reset': String(resetInSeconds),
  }
}
