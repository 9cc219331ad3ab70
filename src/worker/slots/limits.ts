import type { Clock } from '../../clock.ts'
import { LeaseholdError } from '../../errors.ts'

/** Limits for the rows that share a key (an endpoint, a customer), within one worker: n workers allow n times as much. */
export interface Limits<Row> {
  /** Rows without a key are not limited. */
  readonly key: (row: Row) => string | undefined
  /** How many rows of one key are processed at once. */
  readonly concurrency?: number
  /** How many rows of one key are started per second, on average; `burst` of them at once. */
  readonly rate?: { readonly perSecond: number; readonly burst: number }
}

/** Whether a row of this key may start now and, if not, when to try next. */
export interface Limiter {
  /** 0: it may, and counts as started. Otherwise how many ms to wait; Infinity: until another row of the key ends. */
  start(key: string): number
  ended(key: string): void
}

/** From this many keys on, those that are idle and have their whole burst are forgotten, so that memory is bounded. */
const FORGET_IDLE_KEYS_AT = 1_000

interface Bucket {
  running: number
  tokens: number
  filledAt: number
}

export function createLimiter<Row>(limits: Limits<Row>, clock: Clock): Limiter {
  refuseImpossible(limits)
  const buckets = new Map<string, Bucket>()
  const maxRunning = limits.concurrency ?? Number.POSITIVE_INFINITY
  const perMs = (limits.rate?.perSecond ?? 0) / 1_000
  const burst = limits.rate?.burst ?? 0

  function refill(bucket: Bucket, now: number): void {
    bucket.tokens = Math.min(burst, bucket.tokens + (now - bucket.filledAt) * perMs)
    bucket.filledAt = now
  }

  function forgetIdle(now: number): void {
    for (const [key, bucket] of buckets) {
      refill(bucket, now)
      if (bucket.running === 0 && bucket.tokens >= burst) buckets.delete(key)
    }
  }

  return {
    start(key) {
      const now = clock.monotonicNow()
      if (buckets.size >= FORGET_IDLE_KEYS_AT) forgetIdle(now)
      const bucket = buckets.get(key) ?? { running: 0, tokens: burst, filledAt: now }
      buckets.set(key, bucket)
      if (bucket.running >= maxRunning) return Number.POSITIVE_INFINITY
      if (limits.rate !== undefined) {
        refill(bucket, now)
        if (bucket.tokens < 1) return (1 - bucket.tokens) / perMs
        bucket.tokens -= 1
      }
      bucket.running += 1
      return 0
    },
    ended(key) {
      const bucket = buckets.get(key)
      if (bucket !== undefined) bucket.running -= 1
    },
  }
}

function refuseImpossible({ concurrency, rate }: Limits<never>): void {
  const broken = [
    ...(concurrency === undefined || (Number.isInteger(concurrency) && concurrency >= 1)
      ? []
      : [`limits.concurrency is ${concurrency}, but must be a whole number from 1`]),
    ...(rate === undefined || rate.perSecond > 0
      ? []
      : [`limits.rate.perSecond is ${rate.perSecond}, but must be above 0`]),
    ...(rate === undefined || rate.burst >= 1
      ? []
      : [`limits.rate.burst is ${rate.burst}, but must be at least 1`]),
  ]
  if (broken.length > 0)
    throw new LeaseholdError('SETTING_INVALID', `The limits cannot work: ${broken.join('; ')}.`)
}
