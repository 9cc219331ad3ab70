import { type Handling } from './handling.ts'
import { type Limiter } from './limits.ts'
import { type Outcome } from './outcome.ts'
import { type HandlerResult } from './verdict.ts'

export interface SlotsOptions<Row> {
  readonly concurrency: () => number
  /** For how many rows there is room at all, running or waiting. */
  readonly places: () => number
  /** No processing without a lease (RULE-020-050): one that ran out or was lost in the queue is not started. */
  readonly isTrusted: (handling: Handling<Row>) => boolean
  readonly handle: (handling: Handling<Row>) => Promise<Outcome | void>
  readonly limits: { readonly key: (row: Row) => string | undefined; readonly limiter: Limiter } | undefined
  readonly onStart: (handling: Handling<Row>) => void
  readonly onEnd: (handling: Handling<Row>, result: HandlerResult) => void
  readonly onTrouble: (handling: Handling<Row>, error: unknown) => void
  /** Rows whose key has no room, and that are in the way of others. */
  readonly onCrowded: (handlings: readonly Handling<Row>[], forMs: number) => void
}

/** How long rows that are given back because their key is busy stay away, when nothing says better. */
const CROWDED_MS = 1_000

/** Rows waiting for a slot and rows in one. */
export class Slots<Row> {
  readonly #options: SlotsOptions<Row>
  readonly #running = new Set<Handling<Row>>()
  /** Lost, but their handlers have not come back yet. Their slots are given away, as often as there are slots. */
  readonly #abandoned = new Set<Handling<Row>>()
  #ready: Handling<Row>[] = []
  #retry: NodeJS.Timeout | undefined

  constructor(options: SlotsOptions<Row>) {
    this.#options = options
  }

  get ready(): number {
    return this.#ready.length
  }

  get running(): number {
    return this.#running.size
  }

  get abandoned(): number {
    return this.#abandoned.size
  }

  /** More handlers have not come back from rows they lost than there are slots: nothing more is started. */
  get isClogged(): boolean {
    return this.#abandoned.size > this.#options.concurrency()
  }

  /** Those in hand at this moment, whatever happens to them while they are looked at. */
  [Symbol.iterator](): IterableIterator<Handling<Row>> {
    return [...this.#running, ...this.#ready].values()
  }

  add(handlings: readonly Handling<Row>[]): void {
    this.#ready.push(...handlings)
  }

  /** Its handler has not come back yet. */
  isRunning(handling: Handling<Row>): boolean {
    return this.#running.has(handling) || this.#abandoned.has(handling)
  }

  /** Those that have not been started; they are no longer waiting here. */
  takeReady(): Handling<Row>[] {
    const ready = this.#ready
    this.#ready = []
    return ready
  }

  /** Those that were claimed before this and have not been started. */
  takeReadyBefore(claimedAt: number): Handling<Row>[] {
    const early = this.#ready.filter((handling) => handling.claimedAt < claimedAt)
    if (early.length > 0) this.#ready = this.#ready.filter((handling) => handling.claimedAt >= claimedAt)
    return early
  }

  /** True when its handler is running, and will come back some time. */
  abandon(handling: Handling<Row>): boolean {
    if (!this.#running.delete(handling)) {
      this.#ready = this.#ready.filter((other) => other !== handling)
      return false
    }
    this.#abandoned.add(handling)
    return true
  }

  /** Starts as many as there is room for. */
  fill(): void {
    const { limits } = this.#options
    if (limits !== undefined) {
      this.#fillWithin(limits)
      return
    }
    const ready = this.#ready
    const aside: Handling<Row>[] = []
    let seen = 0
    while (seen < ready.length && this.#hasRoom()) {
      const handling = ready[seen]
      seen += 1
      if (handling === undefined) continue
      if (this.#options.isTrusted(handling)) this.#start(handling)
      else aside.push(handling)
    }
    if (seen > 0) ready.splice(0, seen, ...aside)
  }

  close(): void {
    clearTimeout(this.#retry)
  }

  #hasRoom(): boolean {
    const concurrency = this.#options.concurrency()
    return this.#running.size < concurrency && !this.isClogged
  }

  /** Rows whose key has no room step aside; when nothing but such rows is left they are given back. */
  #fillWithin({ key, limiter }: NonNullable<SlotsOptions<Row>['limits']>): void {
    const aside: Handling<Row>[] = []
    let soonest = Number.POSITIVE_INFINITY
    const ready = this.takeReady()
    for (const handling of ready) {
      const { limitedBy, failure } = keyOf(key, handling.row)
      if (failure !== undefined) {
        this.#start(handling, async () => Promise.reject(failure.error))
        continue
      }
      const mayStart = this.#hasRoom() && this.#options.isTrusted(handling)
      const waitMs = mayStart && limitedBy !== undefined ? limiter.start(limitedBy) : 0
      if (!mayStart) {
        aside.push(handling)
      } else if (waitMs > 0) {
        soonest = Math.min(soonest, waitMs)
        aside.push(handling)
      } else {
        handling.limitedBy = limitedBy
        this.#start(handling)
      }
    }
    this.#ready = aside
    if (aside.length > 0 && this.#hasRoom()) this.#standAside(soonest)
  }

  #standAside(soonest: number): void {
    const forMs = Number.isFinite(soonest) ? soonest : CROWDED_MS
    const { concurrency, places, onCrowded } = this.#options
    // Half of what is free stays free for rows of other keys: there are slots for them.
    const free = places() - this.#running.size - this.#abandoned.size
    const surplus = this.#ready.splice(Math.max(0, Math.min(concurrency(), Math.floor(free / 2))))
    if (surplus.length > 0) onCrowded(surplus, forMs)
    clearTimeout(this.#retry)
    this.#retry = setTimeout(() => this.fill(), forMs)
  }

  #start(handling: Handling<Row>, run = this.#options.handle): void {
    this.#running.add(handling)
    this.#options.onStart(handling)
    run(handling).then(
      (outcome) => this.#ended(handling, { ended: 'returned', outcome: outcome ?? undefined }),
      (error: unknown) => this.#ended(handling, { ended: 'threw', error }),
    )
  }

  /** What goes wrong in our own code at the end of a handler must not end the process. */
  #ended(handling: Handling<Row>, result: HandlerResult): void {
    try {
      this.#end(handling, result)
    } catch (error) {
      this.#options.onTrouble(handling, error)
    }
  }

  #end(handling: Handling<Row>, result: HandlerResult): void {
    this.#running.delete(handling)
    this.#abandoned.delete(handling)
    if (handling.limitedBy !== undefined) this.#options.limits?.limiter.ended(handling.limitedBy)
    try {
      this.#options.onEnd(handling, result)
    } finally {
      this.fill()
    }
  }
}

/** The key comes from the user's code, which may not like every row. */
function keyOf<Row>(
  key: (row: Row) => string | undefined,
  row: Row,
): { readonly limitedBy?: string | undefined; readonly failure?: { readonly error: unknown } } {
  try {
    return { limitedBy: key(row) }
  } catch (error) {
    return { failure: { error } }
  }
}
