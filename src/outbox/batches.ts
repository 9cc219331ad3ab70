import type { HandlerContext } from '../worker/context.ts'
import type { Outcome } from '../worker/completion/outcome.ts'
import type { OutboxEvent } from './event.ts'
import { type Answer, checkedAnswers, type PublishContext } from './publisher.ts'
import type { OutboxRow } from './table.ts'

type PublishBatch = (
  events: readonly OutboxEvent[],
  context: PublishContext,
) => Promise<readonly Answer[] | void>

type RowContext = HandlerContext<OutboxRow>

interface Waiting {
  readonly event: OutboxEvent
  readonly context: RowContext
  readonly resolve: (outcome: Outcome | void) => void
  readonly reject: (error: unknown) => void
}

/**
 * Groups events that start together into one call of the publisher. The worker starts as many rows as it has slots for
 * within one turn of the event loop; at the end of the turn they are sent. No event waits for a batch to fill up.
 */
export class Batches {
  readonly #publish: PublishBatch
  readonly #maxBatch: number
  #waiting: Waiting[] = []

  constructor(maxBatch: number, publish: PublishBatch) {
    this.#maxBatch = maxBatch
    this.#publish = publish
  }

  /** Resolves with the outcome of this event. */
  async add(event: OutboxEvent, context: RowContext): Promise<Outcome | void> {
    return new Promise((resolve, reject) => {
      const waiting = this.#waiting
      waiting.push({ event, context, resolve, reject })
      if (waiting.length === 1) queueMicrotask(() => this.#flush())
      if (waiting.length === this.#maxBatch) this.#flush()
    })
  }

  #flush(): void {
    const batch = this.#waiting
    if (batch.length === 0) return
    this.#waiting = []
    this.#send(batch).catch((error: unknown) => {
      for (const { reject } of batch) reject(error)
    })
  }

  async #send(batch: readonly Waiting[]): Promise<void> {
    const events = batch.map(({ event }) => event)
    const context = new BatchContext(batch.map(({ context }) => context))
    const answers = checkedAnswers(await this.#publish(events, context), batch.length)
    batch.forEach(({ resolve, reject }, i) => {
      const answer = answers?.[i]
      if (answer instanceof Error) reject(answer)
      else resolve(answer)
    })
  }
}

/** The signal is created when it is first read: most publishers never read it. */
class BatchContext implements PublishContext {
  readonly #rows: readonly RowContext[]
  #signal: AbortSignal | undefined

  constructor(rows: readonly RowContext[]) {
    this.#rows = rows
  }

  get signal(): AbortSignal {
    this.#signal ??= whenAllFire(this.#rows.map(({ signal }) => signal))
    return this.#signal
  }

  get log(): PublishContext['log'] {
    // A log belongs to one row; that of the first row is used for the batch.
    const [first] = this.#rows
    if (first === undefined) throw new TypeError('a batch has at least one event')
    return first.log
  }
}

/** A batch goes on while any of its rows still has its lease. */
function whenAllFire(signals: readonly AbortSignal[]): AbortSignal {
  const [only] = signals
  if (signals.length === 1 && only !== undefined) return only
  const controller = new AbortController()
  let remaining = signals.length
  const fired = (signal: AbortSignal): void => {
    remaining -= 1
    if (remaining === 0) controller.abort(signal.reason)
  }
  for (const signal of signals) {
    if (signal.aborted) fired(signal)
    else signal.addEventListener('abort', () => fired(signal), { once: true })
  }
  return controller.signal
}
