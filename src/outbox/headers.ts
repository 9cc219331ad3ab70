import type { OutboxEvent } from './event.ts'

/** The names under which an event's own facts travel, in every broker. Lower case: HTTP/2 and NATS care. */
export const HEADER = {
  eventId: 'leasehold-event-id',
  eventType: 'leasehold-event-type',
  orderingKey: 'leasehold-ordering-key',
  token: 'leasehold-token',
  attempt: 'leasehold-attempt',
} as const

/** What goes beside the payload: the producer's headers, and what a sink needs to recognise and to fence. */
export function headersOf(event: OutboxEvent): Record<string, string> {
  return {
    ...event.headers,
    [HEADER.eventId]: event.eventId,
    [HEADER.eventType]: event.type,
    ...(event.orderingKey === undefined ? {} : { [HEADER.orderingKey]: event.orderingKey }),
    [HEADER.token]: String(event.token),
    [HEADER.attempt]: String(event.attempt),
  }
}
