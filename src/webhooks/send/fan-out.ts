import { LeaseholdError } from '../../errors.ts'
import { newEventIds } from '../../messages/event-ids.ts'
import { eventsText } from '../../messages/events-text.ts'
import type { AdaptedWriter } from '../../transactions/writer-types.ts'
import { type Sent, TRACE_HEADERS } from './event.ts'

/** An event that can be sent as it is. */
export interface Outgoing {
  readonly type: string
  readonly tenant: string
  readonly orderingKey: string | undefined
  /** The document that is POSTed, as JSON. */
  readonly body: string
  readonly headers: Readonly<Record<string, string>>
  readonly availableAt: string | undefined
  readonly eventId: string | undefined
}

/** Writes the deliveries of all events in one statement, and answers in the order in which the events were given. */
export async function fanOut(
  writer: AdaptedWriter,
  statement: string,
  events: readonly Outgoing[],
): Promise<readonly Sent[]> {
  const newEventId = newEventIds()
  const eventIds = events.map(({ eventId }) => eventId ?? newEventId())
  /** The place at which an event id was first given; given again it is the same event. */
  const places = new Map<string, number>()
  for (const [place, eventId] of eventIds.entries()) if (!places.has(eventId)) places.set(eventId, place)

  const texts = [...places].flatMap(([eventId, place]) => {
    const event = events[place]
    return event === undefined ? [] : [eventText(event, eventId, place)]
  })
  const { rows } = await writer.query(statement, [eventsText(texts)])
  const deliveries = new Map(rows.map((row) => [row['event'], Number(row['deliveries'])]))
  return eventIds.map((eventId, place) => {
    const written = deliveries.get(eventId)
    if (written === undefined) throw withoutAnswer(eventId)
    return { eventId, deliveries: places.get(eventId) === place ? written : 0 }
  })
}

/** The trace context among these headers, by its names in lower case. */
export function traceContext(headers: Readonly<Record<string, string>>): Record<string, string> {
  const names: readonly string[] = TRACE_HEADERS
  return Object.fromEntries(
    Object.entries(headers)
      .map(([name, value]) => [name.toLowerCase(), value] as const)
      .filter(([name]) => names.includes(name)),
  )
}

function eventText(event: Outgoing, eventId: string, place: number): string {
  const { type, tenant, orderingKey, headers, availableAt, body } = event
  const fields = JSON.stringify({
    place,
    event_id: eventId,
    event_type: type,
    tenant,
    ordering_key: orderingKey,
    headers: traceContext(headers),
    available_at: availableAt,
  })
  // The body is JSON already.
  return `${fields.slice(0, -1)},"body":${body}}`
}

function withoutAnswer(eventId: string): LeaseholdError {
  return new LeaseholdError(
    'WRITER_INVALID',
    `The event ${eventId} was sent, but not answered for: what was given as the transaction did not return rows.`,
    { remedy: 'Its query(text, values) must resolve to the rows, or to { rows }.' },
  )
}
