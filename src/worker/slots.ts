import type { Handling } from './handling.ts'
import type { Limiter } from './limits.ts'
import type { Outcome } from './outcome.ts'
import { type HandlerResult, RETURNED } from './verdict.ts'

export interface SlotsOptions<Row> {
  readonly concurrency: () => number
  /** Whether handlers may be started at this moment. */
  readonly mayStart: () => boolean
  /** For how many rows there is room at all, running or waiting. */
  readonly places: () => number
  /** On the monotonic clock. */
  readonly now: () => number
  /** No processing without a lease (RULE-020-050): one that ran out or was lost in the queue is not started. */
  readonly isTrusted: (handling: Handling<Row>, now: number) => boolean
  readonly handle: (handling: Handling<Row>) => Promise<Outcome | void>
  readonly limits: { readonly key: (row: Row) => string | undefined; readonly limiter: Limiter } | undefined
  readonly onStart: (handling: Handling<Row>, now: number) => void
  readonly onEnd: (handling: Handling<Row>, result: HandlerResult) => void
  readonly onTrouble: (handling: Handling<Row>, error: unknown) => void
  /** Rows whose key has no room, and that are in the way of others. */
  readonly onCrowded: (handlings: readonly Handling<Row>[], forMs: number) => void
}

/** How long rows that are given back because their key is busy stay away, when nothing says better. */
const CROWDED_MS = 1_000

/** The queue is compacted when it has this many started entries at its front. */
const MOST_STARTED = 64

/** A place for one handler. What hears of its end is made once, and not for every row that goes through. */
class Slot<Row> {
  handling: Handling<Row> | undefined
  readonly returned: (outcome: Outcome | void) => void
  readonly threw: (error: unknown) => void

  constructor(onEnd: (slot: Slot<Row>, result: HandlerResult) => void) {
    this.handling = undefined
    // A handler written without types may return null.
    this.returned = (outcome) =>
      onEnd(
        this,
        (outcome ?? undefined) === undefined
          ? RETURNED
          : { ended: 'returned', outcome: outcome ?? undefined },
      )
    this.threw = (error) => onEnd(this, { ended: 'threw', error })
  }
}

/** Rows waiting for a slot and rows in one. */
export class Slots<Row> {
  readonly #options: SlotsOptions<Row>
  readonly #slots: Slot<Row>[] = []
  readonly #free: Slot<Row>[] = []
  #running = 0
  /** Lost, but their handlers have not come back yet. Their slots are given away, as often as there are slots. */
  #abandoned = 0
  /** Entries before `#started` have been started; the others wait for a slot. */
  #queue: Handling<Row>[] = []
  #started = 0
  #retry: NodeJS.Timeout | undefined

  constructor(options: SlotsOptions<Row>) {
    this.#options = options
  }

  get ready(): number {
    return this.#queue.length - this.#started
  }

  get running(): number {
    return this.#running
  }

  get abandoned(): number {
    return this.#abandoned
  }

  /** More handlers have not come back from rows they lost than there are slots: nothing more is started. */
  get isClogged(): boolean {
    return this.#abandoned > this.#options.concurrency()
  }

  /** Those in hand at this moment, whatever happens to them while they are looked at. */
  [Symbol.iterator](): IterableIterator<Handling<Row>> {
    const running = this.#slots.flatMap(({ handling }) => (handling?.state === 'running' ? [handling] : []))
    return [...running, ...this.#waiting()].values()
  }

  add(handlings: readonly Handling<Row>[]): void {
    for (const handling of handlings) this.#queue.push(handling)
  }

  /** Those that have not been started; they are no longer waiting here. */
  takeReady(): Handling<Row>[] {
    const waiting = this.#waiting()
    this.#wait([])
    return waiting
  }

  /** Those that were claimed before this and have not been started. */
  takeReadyBefore(claimedAt: number): Handling<Row>[] {
    const waiting = this.#waiting()
    const early = waiting.filter((handling) => handling.claimedAt < claimedAt)
    if (early.length > 0) this.#wait(waiting.filter((handling) => handling.claimedAt >= claimedAt))
    return early
  }

  /** True when its handler is running, and will come back some time. */
  abandon(handling: Handling<Row>): boolean {
    if (handling.state !== 'running') {
      this.#wait(this.#waiting().filter((other) => other !== handling))
      return false
    }
    handling.state = 'abandoned'
    this.#running -= 1
    this.#abandoned += 1
    return true
  }

  /** Starts as many as there is room for. */
  fill(): void {
    const { limits, isTrusted, now } = this.#options
    if (limits !== undefined) {
      this.#fillWithin(limits)
      return
    }
    let aside: Handling<Row>[] | undefined
    while (this.#started < this.#queue.length && this.#hasRoom()) {
      const handling = this.#queue[this.#started]
      this.#started += 1
      if (handling === undefined) continue
      // Asked for each of them: a handler may take its time before it first waits for something.
      const startedAt = now()
      if (isTrusted(handling, startedAt)) this.#start(handling, startedAt)
      else (aside ??= []).push(handling)
    }
    if (aside !== undefined) this.#wait([...aside, ...this.#waiting()])
    else if (this.#started >= MOST_STARTED) this.#forgetStarted()
  }

  close(): void {
    clearTimeout(this.#retry)
  }

  #hasRoom(): boolean {
    const concurrency = this.#options.concurrency()
    return this.#running < concurrency && this.#abandoned <= concurrency && this.#options.mayStart()
  }

  /** Rows whose key has no room step aside; when nothing but such rows is left they are given back. */
  #fillWithin({ key, limiter }: NonNullable<SlotsOptions<Row>['limits']>): void {
    const aside: Handling<Row>[] = []
    let soonest = Number.POSITIVE_INFINITY
    const ready = this.takeReady()
    for (const handling of ready) {
      const { limitedBy, failure } = keyOf(key, handling.row)
      if (failure !== undefined) {
        this.#start(handling, this.#options.now(), failure)
        continue
      }
      const now = this.#options.now()
      const mayStart = this.#hasRoom() && this.#options.isTrusted(handling, now)
      const waitMs = mayStart && limitedBy !== undefined ? limiter.start(limitedBy) : 0
      if (!mayStart) {
        aside.push(handling)
      } else if (waitMs > 0) {
        soonest = Math.min(soonest, waitMs)
        aside.push(handling)
      } else {
        handling.limitedBy = limitedBy
        this.#start(handling, now)
      }
    }
    this.#wait([...aside, ...this.#waiting()])
    if (aside.length > 0 && this.#hasRoom()) this.#standAside(soonest)
  }

  #standAside(soonest: number): void {
    const forMs = Number.isFinite(soonest) ? soonest : CROWDED_MS
    const { concurrency, places, onCrowded } = this.#options
    // Half of what is free stays free for rows of other keys: there are slots for them.
    const free = places() - this.#running - this.#abandoned
    const waiting = this.#waiting()
    const surplus = waiting.splice(Math.max(0, Math.min(concurrency(), Math.floor(free / 2))))
    this.#wait(waiting)
    if (surplus.length > 0) onCrowded(surplus, forMs)
    clearTimeout(this.#retry)
    this.#retry = setTimeout(() => this.fill(), forMs)
  }

  #waiting(): Handling<Row>[] {
    return this.#queue.slice(this.#started)
  }

  #wait(waiting: Handling<Row>[]): void {
    this.#queue = waiting
    this.#started = 0
  }

  #forgetStarted(): void {
    this.#queue.splice(0, this.#started)
    this.#started = 0
  }

  #start(handling: Handling<Row>, now: number, failure?: { readonly error: unknown }): void {
    const slot = this.#free.pop() ?? this.#oneMore()
    slot.handling = handling
    handling.state = 'running'
    this.#running += 1
    this.#options.onStart(handling, now)
    const running = failure === undefined ? this.#handle(handling) : Promise.reject(failure.error)
    running.then(slot.returned, slot.threw)
  }

  #oneMore(): Slot<Row> {
    const slot = new Slot<Row>((ended, result) => this.#ended(ended, result))
    this.#slots.push(slot)
    return slot
  }

  /** A handler written without types may return or throw at once. */
  #handle(handling: Handling<Row>): Promise<Outcome | void> {
    try {
      const running = this.#options.handle(handling)
      return running instanceof Promise ? running : Promise.resolve(running)
    } catch (error) {
      return Promise.reject(error)
    }
  }

  /** What goes wrong in our own code at the end of a handler must not end the process. */
  #ended(slot: Slot<Row>, result: HandlerResult): void {
    const { handling } = slot
    if (handling === undefined) return
    try {
      this.#end(slot, handling, result)
    } catch (error) {
      this.#options.onTrouble(handling, error)
    }
  }

  #end(slot: Slot<Row>, handling: Handling<Row>, result: HandlerResult): void {
    slot.handling = undefined
    this.#free.push(slot)
    if (handling.state === 'running') this.#running -= 1
    else this.#abandoned -= 1
    handling.state = 'idle'
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
