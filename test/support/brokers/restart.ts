import { expect, vi } from 'vitest'
import type { OutboxEvent } from '../../../src/outbox/event.ts'
import type { Publisher } from '../../../src/outbox/publisher.ts'
import { done, SaturatedError } from '../../../src/worker/completion/outcome.ts'
import { createOutbox } from '../../../src/outbox/index.ts'
import type { Database } from '../../../src/postgres/database.ts'
import { Events } from '../../../src/worker/index.ts'
import { statuses, type useRelays } from '../running-relay.ts'
import { eventually } from './eventually.ts'
import { publishContext } from './events.ts'
import type { TestBroker } from './broker.ts'

export interface Passage {
  /** The number of events that were reported as done. */
  readonly done: number
  /** The number of events that were given back. */
  readonly givenBack: number
  /** Unexpected results: an outcome other than done, or an error other than a `SaturatedError`. */
  readonly surprises: readonly unknown[]
}

const BATCH = 20
const WORKERS = 5
const MAX_PASSAGES = 10

/**
 * Publishes the events as several relays would, restarts the broker when the first have arrived, and publishes the
 * events that were given back once more. A broker that restarts between two batches shows nothing: then all of it is done
 * again.
 */
export async function publishThroughRestart(
  publisher: Publisher,
  events: readonly OutboxEvent[],
  restart: () => Promise<void>,
): Promise<Passage> {
  for (let passages = 1; ; passages += 1) {
    const passage = await passOnce(publisher, events, restart)
    if (passage.givenBack > 0 || passages === MAX_PASSAGES) return passage
  }
}

async function passOnce(
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

/** One answer for each event, also if the publisher gives one for all. */
async function answersFor(publisher: Publisher, batch: readonly OutboxEvent[]): Promise<readonly unknown[]> {
  try {
    return (await publisher.publish(batch, publishContext())) ?? batch.map(() => done())
  } catch (error) {
    return batch.map(() => error)
  }
}

function isDone(answer: unknown): boolean {
  return typeof answer === 'object' && answer !== null && 'name' in answer && answer.name === 'done'
}

// After this time the test fails, and shows what was published until then.
const POLL = { timeout: 200_000, interval: 250 }
const [EVENTS, AT_ONCE, KEYS] = [20_000, 10_000, 1_000]

/**
 * Writes 20,000 events, half of them in 1,000 ordering keys, has them published by a relay, and kills and restarts the
 * broker in between. Checks that everything is published and no attempt was counted. Returns the event ids as written.
 */
export async function relayThroughRestart(
  db: Database,
  startRelay: ReturnType<typeof useRelays>,
  publisher: Publisher,
  broker: TestBroker,
): Promise<readonly string[]> {
  const { enqueue } = createOutbox()
  const written: string[] = []
  for (let n = 0; n < EVENTS; n += AT_ONCE) {
    const events = Array.from({ length: AT_ONCE }, (_, i) => ({
      type: 'order.paid',
      payload: { n: n + i },
      orderingKey: i % 2 === 0 ? `customer ${i % KEYS}` : undefined,
    }))
    written.push(...(await enqueue(db, events)).map(({ eventId }) => eventId))
  }
  const events = new Events()
  let published = 0
  const pauses: string[] = []
  events.on('paused', ({ reason }) => pauses.push(reason))
  events.on('settled', ({ ids }) => {
    published += ids.length
  })
  const some = events.next('settled', () => published >= EVENTS / 5)
  await startRelay({ publisher }, { events })
  await some
  await broker.restart('kill')
  await vi.waitFor(async () => expect(await statuses(db)).toEqual({ PUBLISHED: EVENTS }), POLL)
  // The broker was stopped while there were events to publish. Otherwise the test would prove nothing.
  expect(pauses).toContainEqual(expect.stringMatching(/saturated|unhealthy/))
  const { rows } = await db.query({ text: 'select 1 from leasehold.outbox where attempts > 0 limit 1' })
  expect(rows).toEqual([])
  return written
}

/** Ids that were written and have not arrived, or have arrived and were never written. */
export function lost(written: readonly string[], arrived: readonly string[]): string[] {
  const [there, known] = [new Set(arrived), new Set(written)]
  return [...written.filter((id) => !there.has(id)), ...[...there].filter((id) => !known.has(id))]
}
