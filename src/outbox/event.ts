import type { AnyPayloads, EventPayloads } from '../messages/event-payloads.ts'

export type { AnyPayloads, EventPayloads }

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
    /** A uuid. Writing the same one again writes nothing. */
    readonly eventId?: string | undefined
    /** After so many failed attempts it is dead; `null`: never. Default 25. */
    readonly maxAttempts?: number | null | undefined
  }
}[keyof Payloads & string]

/** An event as a publisher gets it. */
export interface OutboxEvent<Type extends string = string, Payload = unknown> {
  /** The row: grows in the order of insertion. */
  readonly id: string
  /** What consumers recognise the event by: the same however often it is published. */
  readonly eventId: string
  readonly type: Type
  readonly payload: Payload
  readonly orderingKey: string | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly createdAt: Date
  /** 1 for the first attempt. */
  readonly attempt: number
  /** The fencing token: a sink that remembers the highest of an event can refuse a zombie's publication. */
  readonly token: bigint
}
