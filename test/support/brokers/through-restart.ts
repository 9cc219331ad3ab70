import type { OutboxEvent } from '../../../src/outbox/event.ts'
import type { Publisher } from '../../../src/outbox/publisher.ts'
import { done, SaturatedError } from '../../../src/worker/completion/outcome.ts'
import { eventually } from './eventually.ts'
import { publishContext } from './events.ts'

export interface Passage {
  /** How many events were reported as done. */
  readonly done: number
  /** How many events were given back. */
  readonly givenBack: number
  /** Whatever should not have happened: another outcome than done, another error than a `SaturatedError`. */
  readonly surprises: readonly unknown[]
}

const BATCH = 20
const WORKERS = 5

/**
 * Publishes the events as several relays would, restarts the broker once the first have arrived, and publishes again
 * what was given back.
 */
export async function publishThroughRestart(
  publisher: Publisher,
  events: readonly OutboxEvent[],
  restart: () => Promise<void>,
): Promise<Passage> {
  const queue: (readonly OutboxEvent[])[] = []
  for (let from = 0; from < events.length; from += BATCH) queue.push(events.slice(from, from + BATCH))
  const surprises: unknown[] = []
  let arrived = 0
  let givenBack = 0

  async function work(): Promise<void> {
    for (let batch = queue.shift(); batch !== undefined; batch = queue.shift()) {
      const answers = await answersFor(publisher, batch)
      arrived += answers.filter((answer) => isDone(answer)).length
      surprises.push(...answers.filter((answer) => !isDone(answer) && !(answer instanceof SaturatedError)))
      const unanswered = batch.filter((_event, index) => answers[index] instanceof SaturatedError)
      if (unanswered.length === 0) continue
      givenBack += unanswered.length
      queue.push(unanswered)
      await eventually(async () => publisher.probe?.(AbortSignal.timeout(5_000)))
    }
  }

  const workers = Array.from({ length: WORKERS }, work)
  await eventually(async () => {
    if (arrived < events.length / 10) throw new Error('nothing was published')
  })
  await restart()
  await Promise.all(workers)
  return { done: arrived, givenBack, surprises }
}

/** An answer for each, also when it is one for all. */
async function answersFor(publisher: Publisher, batch: readonly OutboxEvent[]): Promise<readonly unknown[]> {
  try {
    return (await publisher.publish(batch, publishContext())) ?? batch.map(() => done())
  } catch (error) {
    return batch.map(() => error)
  }
}

function isDone(answer: unknown): boolean {
  return typeof answer === 'object' && answer !== null && 'outcome' in answer && answer.outcome === 'done'
}
