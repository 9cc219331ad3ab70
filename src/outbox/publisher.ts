import type { HandlerLog } from '../worker/context.ts'
import type { Outcome, SaturatedError } from '../worker/completion/outcome.ts'
import type { OutboxEvent } from './event.ts'

export interface PublishContext {
  /** Fires when no event of this batch has its lease any more, or the relay has to stop. */
  readonly signal: AbortSignal
  readonly log: HandlerLog
}

/**
 * What became of one event. A `SaturatedError` here gives back this event alone, as if it had never been tried: the
 * target went away before it answered for it.
 */
export type Answer = Outcome | SaturatedError

/**
 * Where a relay sends events.
 *
 * `publish` is one attempt for each event of the batch. It resolves when the target has answered for all of them, with
 * an answer for each, in the order of the batch: `done()` only for what the target has acknowledged, `retry({ error,
 * delayMs })`, or `dead(reason)` for what it will never take. Nothing at all means that all were acknowledged. What it
 * throws counts for the whole batch: an error is a retry, a `PermanentError` dead, and a `SaturatedError` gives the
 * events back without counting an attempt and pauses claiming: the target is away, which is no event's fault.
 */
export interface Publisher {
  /** For logs and errors: `nats`, `http`. */
  readonly name: string
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
  publish(events: readonly OutboxEvent[], context: PublishContext): Promise<readonly Answer[] | void>
  /** Asked now and then; claiming pauses while it rejects. */
  probe?(signal: AbortSignal): Promise<void>
  /** Called once the relay has stopped. */
  close?(): Promise<void>
}
