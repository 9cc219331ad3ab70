/** How many requests a caller may send, and how many connections to the database it may use, counted by this process. */
import type { Clock } from '../../clock.ts'
import { LeaseholdError } from '../../errors.ts'
import { type Database, pipelineIn, type TransactionOptions } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { deadline } from '../../timeout.ts'

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

/** A bucket of tokens for each caller. */
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

  /** Returns a token that was taken for what turned out not to count. */
  giveBack(caller: string): void {
    const bucket = this.#refilled(caller)
    bucket.tokens = Math.min(this.#limit.burst, bucket.tokens + 1)
    this.#remember(caller, bucket)
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

export class TooMany extends LeaseholdError {
  readonly retryInSeconds: number

  constructor(what: string, { limit, retryInSeconds }: Allowance) {
    super('TOO_MANY_REQUESTS', `There were too many ${what}: more than ${limit} at once.`, {
      remedy: `Wait for ${retryInSeconds} s, as Retry-After says.`,
    })
    this.retryInSeconds = retryInSeconds
  }
}

export interface ConnectionLimit {
  /** Transactions of a caller that run at the same time. */
  readonly atOnce: number
  /** How long a transaction waits. Infinity: until it is its turn. */
  readonly waitMs: number
  /** How many transactions of a caller may wait. Default 100. */
  readonly maxWaiting?: number
}

/** Transactions of a caller that wait: enough for a page that asks for everything at once, in several windows. */
const MAX_WAITING = 100

interface CallerQueue {
  running: number
  /** Those that wait, in the order in which they came; each is called when it may start. */
  readonly waiting: Set<() => void>
}

/** The transactions of one request. */
interface OwnTransactions {
  running: number
  /** Those that wait; each is called with the error when it need not be made any more. */
  readonly waiting: Set<(error: unknown) => void>
  /** Fires when the client hangs up. */
  readonly signal: AbortSignal | undefined
}

/**
 * All callers share one pool. Without this, a few slow lists of one caller would use all of its connections, and the
 * others would wait for these lists. Transactions are counted and not requests: a request that is being received uses no
 * connection, nor does a stream of live updates.
 */
export class ConnectionLimiter {
  readonly #limit: ConnectionLimit
  readonly #queues = new Map<string, CallerQueue>()

  constructor(limit: ConnectionLimit) {
    this.#limit = limit
  }

  /**
   * A database for one request, to be closed when it is answered. Its transactions wait for their turn among those of the
   * caller. One whose client hangs up leaves the queue; if it only reads, it is also stopped while it runs.
   */
  limit(db: Database, caller: string, request?: Request): Database {
    const own: OwnTransactions = { running: 0, waiting: new Set(), signal: request?.signal }
    const options = request?.method === 'GET' ? { signal: request.signal } : {}
    const transaction = async <Result>(
      work: (tx: Queryable) => Promise<Result>,
      given: TransactionOptions = {},
    ): Promise<Result> => {
      const finish = await this.#start(caller, own)
      own.running += 1
      try {
        return await db.transaction(work, { ...given, ...options })
      } catch (error) {
        throw own.signal?.aborted === true ? clientGone() : error
      } finally {
        own.running -= 1
        finish()
      }
    }
    return {
      transaction,
      query: async (statement) => transaction(async (tx) => tx.query(statement)),
      pipeline: pipelineIn(transaction),
      // The pool belongs to somebody else. What the request has asked for and does not wait for any more is not read.
      async close() {
        for (const giveUp of own.waiting) giveUp(tooMany('The request has been answered'))
        return Promise.resolve()
      },
    }
  }

  /** Resolves when a transaction of this caller may start, with what has to be called when it has ended. */
  async #start(caller: string, own: OwnTransactions): Promise<() => void> {
    const { atOnce, waitMs, maxWaiting = MAX_WAITING } = this.#limit
    const queue = this.#queues.get(caller) ?? { running: 0, waiting: new Set() }
    this.#queues.set(caller, queue)
    const finish = (): void => this.#finish(caller, queue)
    if (queue.running < atOnce) {
      queue.running += 1
      return finish
    }
    if (queue.waiting.size >= maxWaiting)
      throw tooMany(`There are ${maxWaiting} statements of this caller that wait already`)
    return new Promise((resolve, reject) => {
      let limit: { cancel(): void } | undefined
      const leave = (): void => {
        queue.waiting.delete(start)
        own.waiting.delete(giveUp)
        own.signal?.removeEventListener('abort', onAbort)
        limit?.cancel()
      }
      const start = (): void => {
        leave()
        resolve(finish)
      }
      const giveUp = (error: unknown): void => {
        leave()
        reject(error)
      }
      const onAbort = (): void => giveUp(clientGone())
      const waitFor = (): void => {
        limit = deadline(waitMs, () => {
          // It waits for its own request, whose statements have a timeout of their own.
          if (own.running > 0) waitFor()
          else giveUp(tooMany(`The other requests of this caller took longer than ${waitMs} ms`))
        })
      }
      if (waitMs !== Infinity) waitFor()
      queue.waiting.add(start)
      own.waiting.add(giveUp)
      own.signal?.addEventListener('abort', onAbort, { once: true })
      if (own.signal?.aborted === true) onAbort()
    })
  }

  /** What has ended hands its place to the one that has waited longest, so that none that comes later is before it. */
  #finish(caller: string, queue: CallerQueue): void {
    const [next] = queue.waiting
    if (next !== undefined) return next()
    queue.running -= 1
    if (queue.running === 0) this.#queues.delete(caller)
  }
}

function tooMany(what: string): LeaseholdError {
  return new LeaseholdError('TOO_MANY_REQUESTS', `${what}.`, {
    remedy: 'Send fewer requests at the same time, or once more a little later, as Retry-After says.',
  })
}

/** Nobody reads it, and it is not worth a line in the log. */
function clientGone(): LeaseholdError {
  return tooMany('The client has closed its connection')
}
