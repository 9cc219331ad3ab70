import { randomUUID } from 'node:crypto'

import type { OutboxEvent } from '../../../src/outbox/event.ts'
import type { PublishContext } from '../../../src/outbox/publisher.ts'

/** An event as a relay gives it to a publisher. */
export function outboxEvent(given: Partial<OutboxEvent> = {}): OutboxEvent {
  return {
    id: '1',
    eventId: randomUUID(),
    type: 'order.paid',
    payload: { id: 'order-1', amount: 12.5, note: 'Grüße' },
    orderingKey: 'customer-7',
    headers: { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' },
    createdAt: new Date('2026-03-01T12:00:00.250Z'),
    attempt: 2,
    token: 9_007_199_254_740_993n,
    ...given,
  }
}

export function outboxEvents(
  count: number,
  given: (index: number) => Partial<OutboxEvent> = () => ({}),
): OutboxEvent[] {
  return Array.from({ length: count }, (_, index) => outboxEvent({ id: String(index), ...given(index) }))
}

const silent = () => {}

/** The context that a relay gives to a publisher with the events. */
export function publishContext(signal: AbortSignal = new AbortController().signal): PublishContext {
  return { signal, log: { debug: silent, info: silent, warn: silent, error: silent } }
}
