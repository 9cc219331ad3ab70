import { expect } from 'vitest'

import { createOutbox } from '../../../src/outbox/index.ts'
import type { Publisher } from '../../../src/outbox/publisher.ts'
import type { Database } from '../../../src/postgres/database.ts'
import { Events } from '../../../src/worker/index.ts'
import { statuses, type useRelays } from '../running-relay.ts'
import type { TestBroker } from './broker.ts'

const [EVENTS, AT_ONCE, KEYS] = [50_000, 10_000, 1_000]

/**
 * Writes 50,000 events, half of them in 1,000 ordering keys, has them published by a relay, and kills and restarts the
 * broker on the way. Returns the event ids, in the order of writing; everything is published, and no attempt was counted.
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
  const paused = events.next('paused')
  events.on('settled', ({ ids }) => {
    published += ids.length
  })
  const some = events.next('settled', () => published >= EVENTS / 5)
  const all = events.next('settled', () => published >= EVENTS)
  await startRelay({ publisher }, { events })
  await some
  await broker.restart('kill')
  // It was away while there was something to publish, or the test would prove nothing.
  expect((await paused).reason).toMatch(/saturated|unhealthy/)
  await all
  expect(await statuses(db)).toEqual({ PUBLISHED: EVENTS })
  const { rows } = await db.query({ text: 'select 1 from leasehold.outbox where attempts > 0 limit 1' })
  expect(rows).toEqual([])
  return written
}

/** What was written and has not arrived, or has arrived and was never written. */
export function lost(written: readonly string[], arrived: readonly string[]): string[] {
  const [there, known] = [new Set(arrived), new Set(written)]
  return [...written.filter((id) => !there.has(id)), ...[...there].filter((id) => !known.has(id))]
}
