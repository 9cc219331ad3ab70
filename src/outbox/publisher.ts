/** The contract between the relay and a publisher, and the check that a publisher keeps to it. */
import { describeValue } from '../messages/validate.ts'
import type { HandlerLog } from '../worker/context.ts'
import type { Outcome } from '../worker/completion/outcome.ts'
import type { OutboxEvent } from './event.ts'

export interface PublishContext {
  /** Fires when every event of the batch has lost its lease, or the relay has to stop. */
  readonly signal: AbortSignal
  readonly log: HandlerLog
}

/**
 * What became of one event. An error applies to this event alone, as if it had been thrown for a batch of one: it is a
 * retry, a `PermanentError` dead, and a `SaturatedError` releases the event without counting an attempt, because the
 * target became unavailable before it answered for it.
 */
export type Answer = Outcome | Error

/**
 * Where a relay sends events.
 *
 * `publish` is one attempt for each event of the batch. It resolves when the target has answered for all of them, with
 * an answer for each, in the order of the batch: `done()` only for what the target has acknowledged, `retry({ error,
 * delayMs })`, or `dead(reason)` for what it will never accept, or an error. Returning nothing means that all were acknowledged. What
 * it throws applies to the whole batch: an error is a retry, a `PermanentError` dead, and a `SaturatedError` releases the
 * events without counting an attempt and pauses claiming, because the target is unavailable.
 */
export interface Publisher {
  /** For logs and errors: `nats`, `http`. */
  readonly name: string
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
  publish(events: readonly OutboxEvent[], context: PublishContext): Promise<readonly Answer[] | void>
  /** Called at intervals; claiming pauses while it rejects. */
  probe?(signal: AbortSignal): Promise<void>
  /** Called once the relay has stopped. */
  close?(): Promise<void>
}

/** What was thrown; where that says nothing (`Promise.reject()`), an error that is logged and recorded in its place. */
export function reasonOf(thrown: unknown): unknown {
  if (thrown !== undefined && thrown !== null && thrown !== '') return thrown
  return new Error(`it threw ${describeValue(thrown)} and gave no reason: throw an Error`)
}

/**
 * What a publisher returned, if it is valid: nothing at all, or one answer for each event. Anything else is an error and
 * never an acknowledgement: an event that no target took must not count as published.
 */
export function checkedAnswers(answers: unknown, count: number): readonly Answer[] | undefined {
  if (answers === undefined) return undefined
  if (!Array.isArray(answers)) {
    throw new TypeError(
      `the publisher returned ${describeValue(answers)}: return an array with an outcome for each event, or nothing`,
    )
  }
  if (answers.length !== count) {
    throw new TypeError(
      `the publisher returned ${answers.length} outcomes for ${count} events: return one for each, or nothing`,
    )
  }
  const invalid = answers.findIndex((answer) => !isAnswer(answer))
  if (invalid !== -1) {
    throw new TypeError(
      `the publisher returned ${describeValue(answers[invalid])} for an event: return done(), retry() or dead()`,
    )
  }
  // Each of them has been checked.
  return answers as readonly Answer[]
}

const OUTCOMES = new Set<unknown>(['done', 'retry', 'dead'])

function isAnswer(value: unknown): boolean {
  if (value instanceof Error) return true
  if (typeof value !== 'object' || value === null || !('name' in value) || !('args' in value)) return false
  return OUTCOMES.has(value.name) && typeof value.args === 'object' && value.args !== null
}
