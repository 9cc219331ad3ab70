import { type Handling } from './handling.ts'
import { type Limiter } from './limits.ts'
import { type Outcome } from './outcome.ts'
import { type HandlerResult } from './verdict.ts'

export interface SlotsOptions<Row> {
  readonly concurrency: () => number
  readonly handle: (handling: Handling<Row>) => Promise<Outcome | void>
  readonly limits: { readonly key: (row: Row) => string | undefined; readonly limiter: Limiter } | undefined
  readonly onStart: (handling: Handling<Row>) => void
  readonly onEnd: (handling: Handling<Row>, result: HandlerResult) => void
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

  /** Those in hand at this moment, whatever happens to them while they are looked at. */
  [Symbol.iterator](): IterableIterator<Handling<Row>> {
    return [...this.#running, ...this.#ready].values()
  }

  add(handlings: readonly Handling<Row>[]): void {
    this.#ready.push(...handlings)
  }

  /** Those that have not been started; they are no longer waiting here. */
  takeReady(): Handling<Row>[] {
    const ready = this.#ready
    this.#ready = []
    return ready
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
    let started = 0
    while (started < this.#ready.length && this.#hasRoom()) {
      const handling = this.#ready[started]
      started += 1
      if (handling !== undefined) this.#start(handling)
    }
    if (started > 0) this.#ready.splice(0, started)
  }

  close(): void {
    clearTimeout(this.#retry)
  }

  #hasRoom(): boolean {
    const concurrency = this.#options.concurrency()
    return this.#running.size < concurrency && this.#abandoned.size <= concurrency
  }

  /** Rows whose key has no room step aside; when nothing but such rows is left they are given back. */
  #fillWithin({ key, limiter }: NonNullable<SlotsOptions<Row>['limits']>): void {
    const aside: Handling<Row>[] = []
    let soonest = Number.POSITIVE_INFINITY
    const ready = this.takeReady()
    for (const handling of ready) {
      const limitedBy = key(handling.row)
      const waitMs = !this.#hasRoom() ? 0 : limitedBy === undefined ? 0 : limiter.start(limitedBy)
      if (!this.#hasRoom()) {
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
    const { concurrency, onCrowded } = this.#options
    const keep = concurrency()
    const surplus = this.#ready.splice(keep)
    if (surplus.length > 0) onCrowded(surplus, forMs)
    clearTimeout(this.#retry)
    this.#retry = setTimeout(() => this.fill(), forMs)
  }

  #start(handling: Handling<Row>): void {
    this.#running.add(handling)
    this.#options.onStart(handling)
    this.#options.handle(handling).then(
      (outcome) => this.#end(handling, { ended: 'returned', outcome: outcome ?? undefined }),
      (error: unknown) => this.#end(handling, { ended: 'threw', error }),
    )
  }

  #end(handling: Handling<Row>, result: HandlerResult): void {
    this.#running.delete(handling)
    this.#abandoned.delete(handling)
    if (handling.limitedBy !== undefined) this.#options.limits?.limiter.ended(handling.limitedBy)
    this.#options.onEnd(handling, result)
    this.fill()
  }
}
