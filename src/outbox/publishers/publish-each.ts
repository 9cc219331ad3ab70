import { untilAborted } from '../../worker/waiting.ts'
import type { OutboxEvent } from '../event.ts'
import type { Answer } from '../publisher.ts'
import { within } from '../../postgres/deadline.ts'
import {
  dead,
  done,
  type Outcome,
  PermanentError,
  retry,
  SaturatedError,
} from '../../worker/completion/outcome.ts'

export const DONE: Outcome = done()

export interface Sending {
  readonly signal: AbortSignal
  /** How long the target may take to answer for the whole batch. */
  readonly timeoutMs: number
  /**
   * Sends one event and waits for its acknowledgement. What it throws is for this event alone: an error is a retry, a
   * `PermanentError` dead, a `SaturatedError` gives it back.
   */
  send(event: OutboxEvent): Promise<Outcome | void>
  /** What it means that there was no answer in time. */
  silence(): Promise<Error>
}

/** All events at once, and an answer for each in their order. */
export async function publishEach(
  events: readonly OutboxEvent[],
  sending: Sending,
): Promise<readonly Answer[]> {
  const { signal, timeoutMs } = sending
  const answers: (Answer | undefined)[] = Array.from({ length: events.length })
  let expired = false
  const all = Promise.all(
    events.map(async (event, index) => {
      try {
        answers[index] = (await sending.send(event)) ?? DONE
      } catch (error) {
        // An acknowledgement that comes late still is one; a client that gives up late has nothing to add.
        if (!expired) answers[index] = answerTo(error)
      }
    }),
  )
  const answered = await untilAborted(signal, async () => within(timeoutMs, all))
  if (answered) return settled(answers.filter((answer) => answer !== undefined))
  expired = true
  const silent = answerTo(await untilAborted(signal, async () => sending.silence()))
  return settled(answers.map((answer) => answer ?? silent))
}

/** What an error thrown for one event means for it. */
export function answerTo(error: unknown): Answer {
  if (error instanceof SaturatedError) return error
  return error instanceof PermanentError ? dead(error) : retry({ error })
}

/** When nothing at all was answered, it is one error for the batch and not the same for each event. */
export function settled(answers: readonly Answer[]): readonly Answer[] {
  const [first] = answers
  if (first instanceof SaturatedError && answers.every((answer) => answer instanceof SaturatedError))
    throw first
  return answers
}
