import type { Clock } from '../../clock.ts'
import { LeaseholdError } from '../../errors.ts'

/** Bounds for the rows that share a key (an endpoint, a customer). They hold within one worker; n workers, n times. */
export interface Limits<Row> {
  /** Rows without a key are not bounded. */
  readonly key: (row: Row) => string | undefined
  /** How many rows of one key are processed at once. */
  readonly concurrency?: number
  /** How many rows of one key are started per second, on average; `burst` of them at once. */
  readonly rate?: { readonly perSecond: number; readonly burst: number }
}

/** May a row of this key start now, and if not, when is it worth asking again? */
export interface Limiter {
  /** 0: yes, and it counts as started. Otherwise how long to wait, in ms; Infinity: until another one ends. */
  start(key: string): number
  ended(key: string): void
}

/** A key's bucket is forgotten once it is full again and nothing of it runs, so memory follows what is busy. */
const FORGET_AT = 1_000

interface Bucket {
  running: number
  tokens: number
  filledAt: number
}

export function createLimiter<Row>(limits: Limits<Row>, clock: Clock): Limiter {
  refuseImpossible(limits)
  const buckets = new Map<string, Bucket>()
  const most = limits.concurrency ?? Number.POSITIVE_INFINITY
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
      if (buckets.size >= FORGET_AT) forgetIdle(now)
      const bucket = buckets.get(key) ?? { running: 0, tokens: burst, filledAt: now }
      buckets.set(key, bucket)
      if (bucket.running >= most) return Number.POSITIVE_INFINITY
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
