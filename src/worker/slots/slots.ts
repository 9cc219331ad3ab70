import type { Clock } from '../../clock.ts'
import type { PauseGate } from '../claiming/pausing.ts'
import type { Completion } from '../completion/completion.ts'
import { type HandlerResult, type Outcome, RETURNED_NOTHING } from '../completion/outcome.ts'
import type { Events } from '../events.ts'
import { refTo, type RowInFlight, type RowsInFlight } from '../rows-in-flight.ts'
import type { WorkerSettings } from '../settings.ts'
import { createLimiter, type Limiter, type Limits } from './limits.ts'
import { Prefetch } from './prefetch.ts'

export interface SlotsOptions<Row extends object> {
  readonly table: string
  readonly clock: Clock
  readonly events: Events
  readonly settings: () => Pick<WorkerSettings, 'concurrency' | 'prefetch'>
  readonly limits: Limits<Row> | undefined
  /** Calls the handler. */
  readonly run: (row: RowInFlight<Row>) => Promise<Outcome | void>
  readonly gate: Pick<PauseGate, 'open'>
  readonly inFlight: Pick<RowsInFlight<Row>, 'isTrusted'>
  readonly cycle: {
    /** No further handler is to be started at the moment. */
    readonly isStalled: boolean
    releaseFor(rows: readonly RowInFlight<Row>[], forMs: number): void
  }
  readonly completion: Pick<Completion<Row>, 'handlerEnded' | 'endedUnexpectedly'>
}

/** How long rows whose key is busy are released for, when the limiter names no time. */
const BUSY_KEY_RETRY_MS = 1_000

/** The queue is compacted when this many entries at its front have been started. */
const COMPACT_AT = 64

/** Room for one handler. Its callbacks are allocated per slot, not per row. */
class Slot<Row> {
  row: RowInFlight<Row> | undefined
  readonly returned: (outcome: Outcome | void) => void
  readonly threw: (error: unknown) => void

  constructor(onEnd: (slot: Slot<Row>, result: HandlerResult) => void) {
    this.row = undefined
    // A handler written without types may return null.
    this.returned = (outcome) =>
      onEnd(
        this,
        (outcome ?? undefined) === undefined
          ? RETURNED_NOTHING
          : { ended: 'returned', outcome: outcome ?? undefined },
      )
    this.threw = (error) => onEnd(this, { ended: 'threw', error })
  }
}

/** Rows waiting for a slot (the prefetch) and rows in one, and the room for more. */
export class Slots<Row extends object> {
  readonly #options: SlotsOptions<Row>
  readonly #limits: { readonly key: Limits<Row>['key']; readonly limiter: Limiter } | undefined
  readonly #prefetch: Prefetch
  readonly #slots: Slot<Row>[] = []
  readonly #free: Slot<Row>[] = []
  #running = 0
  /** Handlers of lost rows that have not returned yet. Their slots are reused, once for each slot. */
  #abandoned = 0
  /** Entries before `#started` have been started; the others wait for a slot. */
  #queue: RowInFlight<Row>[] = []
  #started = 0
  #retryTimer: NodeJS.Timeout | undefined

  constructor(options: SlotsOptions<Row>) {
    const { limits, clock, settings } = options
    this.#options = options
    this.#limits =
      limits === undefined ? undefined : { key: limits.key, limiter: createLimiter(limits, clock) }
    this.#prefetch = new Prefetch(settings().concurrency)
  }

  /** Rows that wait for a slot. */
  get ready(): number {
    return this.#queue.length - this.#started
  }

  get running(): number {
    return this.#running
  }

  get abandoned(): number {
    return this.#abandoned
  }

  get isEmpty(): boolean {
    return this.#running === 0 && this.ready === 0
  }

  /** More handlers of lost rows have not returned than there are slots: nothing more is started. */
  get isClogged(): boolean {
    return this.#abandoned > this.#options.settings().concurrency
  }

  /** How many more rows there is room for. */
  get room(): number {
    if (this.isClogged) return 0
    const { concurrency, prefetch } = this.#options.settings()
    const ahead = this.#prefetch.within(prefetch)
    // With enough rows waiting there is no hurry, and a larger claim later is cheaper than two small ones.
    if (ahead > 1 && this.ready > ahead / 2 && this.#running >= concurrency) return 0
    return concurrency + ahead - this.ready - this.#running
  }

  /** The rows in flight here at this moment; what happens to them during the iteration changes nothing. */
  [Symbol.iterator](): IterableIterator<RowInFlight<Row>> {
    const running = this.#slots.flatMap(({ row }) => (row?.state === 'running' ? [row] : []))
    return [...running, ...this.#waiting()].values()
  }

  add(rows: readonly RowInFlight<Row>[]): void {
    for (const row of rows) this.#queue.push(row)
  }

  /** There were more rows to claim than there was room for: if none waits for a slot, more are claimed ahead. */
  sawBacklog(): void {
    if (this.ready === 0) this.#prefetch.ranDry(this.#options.settings().prefetch)
  }

  /** Removes the rows that have not been started, and returns them. */
  takeReady(): RowInFlight<Row>[] {
    const waiting = this.#waiting()
    this.#setWaiting([])
    return waiting
  }

  /** Those of them that were claimed before this moment. */
  takeReadyBefore(claimedAt: number): RowInFlight<Row>[] {
    const waiting = this.#waiting()
    const early = waiting.filter((row) => row.claimedAt < claimedAt)
    if (early.length > 0) this.#setWaiting(waiting.filter((row) => row.claimedAt >= claimedAt))
    return early
  }

  /** The lease of this row is lost. True when its handler is running, and may return later. */
  abandon(row: RowInFlight<Row>): boolean {
    if (row.state !== 'running') {
      this.#setWaiting(this.#waiting().filter((other) => other !== row))
      return false
    }
    row.state = 'abandoned'
    this.#running -= 1
    this.#abandoned += 1
    return true
  }

  /** Starts as many as there are free slots. No row is started without a trusted lease (RULE-020-050). */
  fill(): void {
    const { inFlight, clock } = this.#options
    if (this.#limits !== undefined) {
      this.#fillWithin(this.#limits)
      return
    }
    let untrusted: RowInFlight<Row>[] | undefined
    while (this.#started < this.#queue.length && this.#hasFreeSlot()) {
      const row = this.#queue[this.#started]
      this.#started += 1
      if (row === undefined) continue
      // Asked for each of them: a handler may take its time before its first await.
      const startedAt = clock.monotonicNow()
      if (inFlight.isTrusted(row, startedAt)) this.#start(row, startedAt)
      else (untrusted ??= []).push(row)
    }
    if (untrusted !== undefined) this.#setWaiting([...untrusted, ...this.#waiting()])
    else if (this.#started >= COMPACT_AT) this.#compact()
  }

  close(): void {
    clearTimeout(this.#retryTimer)
  }

  #hasFreeSlot(): boolean {
    const { settings, gate, cycle } = this.#options
    const { concurrency } = settings()
    return this.#running < concurrency && this.#abandoned <= concurrency && gate.open && !cycle.isStalled
  }

  /** The same with limits per key: rows whose key has no room are passed over. */
  #fillWithin({ key, limiter }: { readonly key: Limits<Row>['key']; readonly limiter: Limiter }): void {
    const { clock, inFlight } = this.#options
    const passedOver: RowInFlight<Row>[] = []
    let shortestWaitMs = Number.POSITIVE_INFINITY
    for (const row of this.takeReady()) {
      const { limitedBy, failure } = keyOf(key, row.row)
      if (failure !== undefined) {
        this.#start(row, clock.monotonicNow(), failure)
        continue
      }
      const now = clock.monotonicNow()
      const mayStart = this.#hasFreeSlot() && inFlight.isTrusted(row, now)
      const waitMs = mayStart && limitedBy !== undefined ? limiter.start(limitedBy) : 0
      if (!mayStart) {
        passedOver.push(row)
      } else if (waitMs > 0) {
        shortestWaitMs = Math.min(shortestWaitMs, waitMs)
        passedOver.push(row)
      } else {
        row.limitedBy = limitedBy
        this.#start(row, now)
      }
    }
    this.#setWaiting([...passedOver, ...this.#waiting()])
    if (passedOver.length > 0 && this.#hasFreeSlot()) this.#releaseSurplus(shortestWaitMs)
  }

  /** Nothing waits but rows of busy keys, and there are free slots: most of them are released, to make room for others. */
  #releaseSurplus(shortestWaitMs: number): void {
    const forMs = Number.isFinite(shortestWaitMs) ? shortestWaitMs : BUSY_KEY_RETRY_MS
    const { settings, cycle } = this.#options
    const { concurrency, prefetch } = settings()
    // Half of the free room stays free for rows of other keys: there are slots for them.
    const free = concurrency + this.#prefetch.within(prefetch) - this.#running - this.#abandoned
    const waiting = this.#waiting()
    const surplus = waiting.splice(Math.max(0, Math.min(concurrency, Math.floor(free / 2))))
    this.#setWaiting(waiting)
    if (surplus.length > 0) cycle.releaseFor(surplus, forMs)
    clearTimeout(this.#retryTimer)
    this.#retryTimer = setTimeout(() => this.fill(), forMs)
  }

  #waiting(): RowInFlight<Row>[] {
    return this.#queue.slice(this.#started)
  }

  #setWaiting(waiting: RowInFlight<Row>[]): void {
    this.#queue = waiting
    this.#started = 0
  }

  #compact(): void {
    this.#queue.splice(0, this.#started)
    this.#started = 0
  }

  #start(row: RowInFlight<Row>, now: number, failure?: { readonly error: unknown }): void {
    const slot = this.#free.pop() ?? this.#newSlot()
    slot.row = row
    row.state = 'running'
    this.#running += 1
    this.#prefetch.waited(now - row.claimedAt)
    const { table, events } = this.#options
    if (events.wanted('started')) events.emit('started', { ...refTo(row, table), attempt: row.attempt })
    const running = failure === undefined ? this.#run(row) : Promise.reject(failure.error)
    running.then(slot.returned, slot.threw)
  }

  #newSlot(): Slot<Row> {
    const slot = new Slot<Row>((ended, result) => this.#ended(ended, result))
    this.#slots.push(slot)
    return slot
  }

  /** A handler written without types may return or throw synchronously. */
  #run(row: RowInFlight<Row>): Promise<Outcome | void> {
    try {
      const running = this.#options.run(row)
      return running instanceof Promise ? running : Promise.resolve(running)
    } catch (error) {
      return Promise.reject(error)
    }
  }

  #ended(slot: Slot<Row>, result: HandlerResult): void {
    const { row } = slot
    if (row === undefined) return
    const { completion } = this.#options
    try {
      this.#freeSlot(slot, row)
      try {
        completion.handlerEnded(row, result)
      } finally {
        this.fill()
      }
    } catch (error) {
      completion.endedUnexpectedly(row, error)
    }
  }

  #freeSlot(slot: Slot<Row>, row: RowInFlight<Row>): void {
    slot.row = undefined
    this.#free.push(slot)
    if (row.state === 'running') this.#running -= 1
    else this.#abandoned -= 1
    row.state = 'ended'
    if (row.limitedBy !== undefined) this.#limits?.limiter.ended(row.limitedBy)
  }
}

/** The key comes from the user's code, which may throw for some rows. */
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
