/** An event: as a producer writes it, as a publisher gets it, and the headers it travels with. */
import type { AnyPayloads, EventPayloads } from '../messages/schemas.ts'

/** An event as a producer writes it. */
export type NewEvent<Payloads extends EventPayloads = AnyPayloads> = {
  readonly [Type in keyof Payloads & string]: {
    readonly type: Type
    readonly payload: Payloads[Type]
    /** Events of one key are published one at a time, in the order in which they were written. */
    readonly orderingKey?: string | undefined
    readonly headers?: Readonly<Record<string, string>> | undefined
    /** Not published before this moment. */
    readonly availableAt?: Date | undefined
    /** A uuid. An event whose id exists already is a duplicate and is not written. */
    readonly eventId?: string | undefined
    /** The event is dead after this many failed attempts; `null`: never. Default 25. */
    readonly maxAttempts?: number | null | undefined
  }
}[keyof Payloads & string]

/** An event as a publisher gets it. */
export interface OutboxEvent<Type extends string = string, Payload = unknown> {
  /** The id of the row. Ids ascend in the order of insertion. */
  readonly id: string
  /** By which consumers recognise the event: the same however often it is published. */
  readonly eventId: string
  readonly type: Type
  readonly payload: Payload
  readonly orderingKey: string | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly createdAt: Date
  /** 1 for the first attempt. */
  readonly attempt: number
  /** The fencing token. A target that remembers the highest token of an event can refuse a relay that lost its lease. */
  readonly token: bigint
}

/** The names under which the fields of an event travel, in every broker. Lower case: HTTP/2 and NATS distinguish. */
export const HEADER = {
  eventId: 'leasehold-event-id',
  eventType: 'leasehold-event-type',
  orderingKey: 'leasehold-ordering-key',
  token: 'leasehold-token',
  attempt: 'leasehold-attempt',
} as const

/** Names that only Leasehold sets, in any case: targets recognise and fence by these headers. */
const OWN_NAME = /^leasehold-/i

/** The headers to send with the payload: the producer's own, and those by which a target recognises and fences. */
export function headersOf(event: OutboxEvent): Record<string, string> {
  const given = Object.entries(event.headers)
  return {
    ...(given.some(([name]) => OWN_NAME.test(name))
      ? Object.fromEntries(given.filter(([name]) => !OWN_NAME.test(name)))
      : event.headers),
    [HEADER.eventId]: event.eventId,
    [HEADER.eventType]: event.type,
    ...(event.orderingKey === undefined ? {} : { [HEADER.orderingKey]: event.orderingKey }),
    [HEADER.token]: String(event.token),
    [HEADER.attempt]: String(event.attempt),
  }
}
