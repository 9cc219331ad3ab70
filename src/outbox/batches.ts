import type { HandlerContext } from '../worker/context.ts'
import { type Outcome, SaturatedError } from '../worker/completion/outcome.ts'
import { checkedAnswers } from './answers.ts'
import type { Answer, PublishContext } from './publisher.ts'

interface Waiting<Row> {
  readonly context: HandlerContext<Row>
  readonly resolve: (outcome: Outcome | void) => void
  readonly reject: (error: unknown) => void
}

type PublishBatch<Row> = (
  rows: readonly HandlerContext<Row>[],
  context: PublishContext,
) => Promise<readonly Answer[] | void>

/**
 * Rows that start together are published together. The worker starts rows one by one, as many as have room, within
 * one turn of the event loop; at its end what has come together goes out, and whatever starts later does not wait
 * for it.
 */
export class Batches<Row extends object> {
  readonly #publish: PublishBatch<Row>
  readonly #most: number
  #waiting: Waiting<Row>[] = []

  constructor(most: number, publish: PublishBatch<Row>) {
    this.#most = most
    this.#publish = publish
  }

  /** Resolves with what became of this row. */
  async add(context: HandlerContext<Row>): Promise<Outcome | void> {
    return new Promise((resolve, reject) => {
      const waiting = this.#waiting
      waiting.push({ context, resolve, reject })
      if (waiting.length === 1) queueMicrotask(() => this.#flush())
      if (waiting.length === this.#most) this.#flush()
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

  async #send(batch: readonly Waiting<Row>[]): Promise<void> {
    const contexts = batch.map(({ context }) => context)
    const answers = checkedAnswers(await this.#publish(contexts, new BatchContext(contexts)), batch.length)
    batch.forEach(({ resolve, reject }, i) => {
      const answer = answers?.[i]
      if (answer instanceof SaturatedError) reject(answer)
      else resolve(answer)
    })
  }
}

/** Made lazily: most publishers never ask for the signal. */
class BatchContext<Row> implements PublishContext {
  readonly #rows: readonly HandlerContext<Row>[]
  #signal: AbortSignal | undefined

  constructor(rows: readonly HandlerContext<Row>[]) {
    this.#rows = rows
  }

  get signal(): AbortSignal {
    this.#signal ??= whenAllFire(this.#rows.map(({ signal }) => signal))
    return this.#signal
  }

  get log(): PublishContext['log'] {
    // A batch is no one row's; the first stands for it.
    const [first] = this.#rows
    if (first === undefined) throw new TypeError('a batch has at least one event')
    return first.log
  }
}

/** One lost lease is no reason to give up on the rest of the batch; when all are lost there is nobody left to publish for. */
function whenAllFire(signals: readonly AbortSignal[]): AbortSignal {
  const [only] = signals
  if (signals.length === 1 && only !== undefined) return only
  const controller = new AbortController()
  let left = signals.length
  const fired = (signal: AbortSignal): void => {
    left -= 1
    if (left === 0) controller.abort(signal.reason)
  }
  for (const signal of signals) {
    if (signal.aborted) fired(signal)
    else signal.addEventListener('abort', () => fired(signal), { once: true })
  }
  return controller.signal
}
