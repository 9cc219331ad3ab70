/** Event type → its payload: `{ 'order.paid': { id: string } }`. */
export type EventPayloads = object

/** Anything JSON can say, for those who do not type their events. */
export type AnyPayloads = Readonly<Record<string, unknown>>
