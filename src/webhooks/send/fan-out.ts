/** Writes one delivery for each event and each subscribed endpoint, in one statement. */
import { LeaseholdError } from '../../errors.ts'
import { newEventIds } from '../../messages/event-ids.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { eventsText } from '../../messages/json.ts'
import type { AdaptedWriter } from '../../transactions/writer.ts'

/** The only headers of an event that are sent to endpoints. Baggage stays inside: it is not meant for strangers. */
export const TRACE_HEADERS = ['traceparent', 'tracestate'] as const

/** An event that has been validated. */
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

/** What `send` returns for an event. */
export interface Sent {
  /** The `webhook-id`, by which receivers recognise the event. Generated unless it was given. */
  readonly eventId: string
  /** How many deliveries were written. 0: no endpoint has subscribed to it, or all of those have it already. */
  readonly deliveries: number
}

/**
 * The document that is POSTed, in the form that Standard Webhooks recommends. It is made once, when the event is sent:
 * every endpoint gets the same bytes in every attempt.
 *
 * @param payload as JSON.
 */
export function webhookBody(type: string, timestamp: Date, payload: string): string {
  return `{"type":${JSON.stringify(type)},"timestamp":"${timestamp.toISOString()}","data":${payload}}`
}

/**
 * Writes the deliveries of events; `$1` is a JSON text: one parameter, which every driver can pass. The result has a row for
 * every event. The function keeps the plan of its INSERT in every session of the server.
 */
export function fanOutSql(schema: string): string {
  return `/* leasehold:send webhooks */
select event, deliveries from ${quoteQualified(schema, 'send_webhooks')}($1::text)`
}

/** Runs `fanOutSql` for these events. The results are in the order of the events. */
export async function fanOut(
  writer: AdaptedWriter,
  statement: string,
  events: readonly Outgoing[],
): Promise<readonly Sent[]> {
  const newEventId = newEventIds()
  const eventIds = events.map(({ eventId }) => eventId ?? newEventId())
  /** Where each event id was first given. An id that is given twice is the same event, and is written once. */
  const firstPositions = new Map<string, number>()
  for (const [position, eventId] of eventIds.entries()) {
    if (!firstPositions.has(eventId)) firstPositions.set(eventId, position)
  }
  const texts = [...firstPositions].flatMap(([eventId, position]) => {
    const event = events[position]
    return event === undefined ? [] : [eventText(event, eventId, position)]
  })
  const { rows } = await writer.query(statement, [eventsText(texts)])
  const deliveries = new Map(rows.map((row) => [row['event'], Number(row['deliveries'])]))
  return eventIds.map((eventId, position) => {
    const written = deliveries.get(eventId)
    if (written === undefined) throw noRowReturned(eventId)
    return { eventId, deliveries: firstPositions.get(eventId) === position ? written : 0 }
  })
}

function eventText(event: Outgoing, eventId: string, position: number): string {
  const { type, tenant, orderingKey, headers, availableAt, body } = event
  const fields = JSON.stringify({
    position,
    event_id: eventId,
    event_type: type,
    tenant,
    ordering_key: orderingKey,
    headers: traceHeaders(headers),
    available_at: availableAt,
  })
  // The body is JSON already.
  return `${fields.slice(0, -1)},"body":${body}}`
}

/** The trace headers among these, with their names in lower case. */
function traceHeaders(headers: Readonly<Record<string, string>>): Record<string, string> {
  const names: readonly string[] = TRACE_HEADERS
  return Object.fromEntries(
    Object.entries(headers)
      .map(([name, value]) => [name.toLowerCase(), value] as const)
      .filter(([name]) => names.includes(name)),
  )
}

function noRowReturned(eventId: string): LeaseholdError {
  return new LeaseholdError(
    'WRITER_INVALID',
    `The event ${eventId} was sent, but what was given as the transaction returned no row for it.`,
    { remedy: 'Its query(text, values) must resolve to the rows, or to { rows }.' },
  )
}
