import type { AnyPayloads, EventPayloads } from '../../messages/schemas.ts'

/** An event as a producer sends it. */
export type NewWebhook<Payloads extends EventPayloads = AnyPayloads> = {
  readonly [Type in keyof Payloads & string]: {
    readonly type: Type
    readonly payload: Payloads[Type]
    /** Whose event it is: it goes to the endpoints of this tenant only. Default: those of nobody in particular. */
    readonly tenant?: string | undefined
    /** An endpoint that asks for order gets the events of one key one at a time, in the order in which they were sent. */
    readonly orderingKey?: string | undefined
    /** A uuid: the `webhook-id`. An endpoint gets the same one once, however often it is sent. */
    readonly eventId?: string | undefined
    /** The trace it belongs to, where that is not the active one. Nothing else travels. */
    readonly headers?: TraceHeaders | undefined
    /** Not delivered before this moment. */
    readonly availableAt?: Date | undefined
  }
}[keyof Payloads & string]

/** What an endpoint's owner may know of our traces. Baggage is not for strangers. */
export const TRACE_HEADERS = ['traceparent', 'tracestate'] as const

export type TraceHeaders = { readonly [Name in (typeof TRACE_HEADERS)[number]]?: string }

/** What became of an event that was given to `send`. */
export interface Sent {
  /** The `webhook-id`, by which receivers recognise the event; made up where none was given. */
  readonly eventId: string
  /** How many deliveries were written now. 0: no endpoint wants it, or those that do were sent it before. */
  readonly deliveries: number
}
