import { LeaseholdError } from '../../errors.ts'
import { newEventIds } from '../../producer/event-ids.ts'
import { eventsText } from '../../producer/events-text.ts'
import type { CheckedEvent } from '../../producer/validate.ts'
import type { AdaptedWriter, WriterRow } from '../../producer/writer-types.ts'
import { enqueueLinesSql, enqueueSql, findEventsSql } from './enqueue-sql.ts'

/** What became of an event that was given to `enqueue`. */
export interface Enqueued {
  /** The row in the outbox. */
  readonly id: string
  /** What consumers recognise the event by; made up where none was given. */
  readonly eventId: string
  /** `false`: an event of this id was there already, and nothing was written. */
  readonly written: boolean
}

export type CheckedOutboxEvent = CheckedEvent & { readonly maxAttempts: number | null }

export interface EnqueueStatements {
  readonly enqueue: string
  readonly enqueueLines: string
  readonly find: string
}

/** Once for each outbox: the texts do not depend on the events. */
export function enqueueStatements(schema: string): EnqueueStatements {
  return { enqueue: enqueueSql(schema), enqueueLines: enqueueLinesSql(schema), find: findEventsSql(schema) }
}

/** Writes the events in one statement, and answers in the order in which they were given. */
export async function writeEvents(
  writer: AdaptedWriter,
  statements: EnqueueStatements,
  events: readonly CheckedOutboxEvent[],
): Promise<readonly Enqueued[]> {
  const newEventId = newEventIds()
  const eventIds = events.map(({ eventId }) => eventId ?? newEventId())
  /** The place at which an event id was first given; given again it is the same event. */
  const places = new Map<string, number>()
  for (const [place, eventId] of eventIds.entries()) if (!places.has(eventId)) places.set(eventId, place)

  const texts = [...places].flatMap(([eventId, place]) => {
    const event = events[place]
    return event === undefined ? [] : [eventText(event, eventId, place)]
  })
  const statement = hasLines(events) ? statements.enqueueLines : statements.enqueue
  const { rows } = await writer.query(statement, [eventsText(texts)])
  const ids = idsIn(rows)
  const written = new Set(rows.flatMap((row) => (row['written'] === true ? [row['event']] : [])))

  // Not there when this statement began, and there when it came to write them: somebody else was faster.
  const unseen = [...places.keys()].filter((eventId) => !ids.has(eventId))
  const others = unseen.length === 0 ? NONE : await findIds(writer, statements, unseen)
  return eventIds.map((eventId, place) => {
    const id = ids.get(eventId) ?? others.get(eventId)
    if (id === undefined) throw neitherWrittenNorFound(eventId)
    return { id, eventId, written: places.get(eventId) === place && written.has(eventId) }
  })
}

/** Whether an ordering key stands here twice. */
function hasLines(events: readonly CheckedOutboxEvent[]): boolean {
  const keys = events.flatMap(({ orderingKey }) => (orderingKey === undefined ? [] : [orderingKey]))
  return new Set(keys).size < keys.length
}

const NONE: ReadonlyMap<string, string> = new Map()

async function findIds(
  writer: AdaptedWriter,
  statements: EnqueueStatements,
  eventIds: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const { rows } = await writer.query(statements.find, [JSON.stringify(eventIds)])
  return idsIn(rows)
}

function idsIn(rows: readonly WriterRow[]): ReadonlyMap<string, string> {
  return new Map(
    rows.flatMap(({ event, id }) =>
      typeof event === 'string' && typeof id === 'string' ? [[event, id] as const] : [],
    ),
  )
}

function eventText(event: CheckedOutboxEvent, eventId: string, place: number): string {
  const { type, orderingKey, headers, availableAt, maxAttempts, payload } = event
  const fields = JSON.stringify({
    place,
    event_id: eventId,
    // An id that was made up just now is nobody else's: there is nothing to look for.
    chosen: event.eventId !== undefined,
    event_type: type,
    ordering_key: orderingKey,
    headers,
    available_at: availableAt,
    max_attempts: maxAttempts,
  })
  // The payload is JSON already.
  return `${fields.slice(0, -1)},"payload":${payload}}`
}

function neitherWrittenNorFound(eventId: string): LeaseholdError {
  return new LeaseholdError(
    'WRITER_INVALID',
    `The event ${eventId} was neither written nor found: what was given as the transaction did not answer with rows, or somebody removed the event at that moment.`,
    { remedy: 'Its query(text, values) must resolve to the rows, or to { rows }.' },
  )
}
