import { LeaseholdError } from '../../errors.ts'
import { newEventIds } from '../../messages/event-ids.ts'
import { eventsText } from '../../messages/events-text.ts'
import type { CheckedEvent } from '../../messages/validate.ts'
import type { AdaptedWriter, WriterRow } from '../../transactions/writer-types.ts'
import { enqueueSql, findEventsSql, serializeSql } from './enqueue-sql.ts'

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
  readonly find: string
  readonly serialize: string
}

/** Once for each outbox: the texts do not depend on the events. */
export function enqueueStatements(schema: string): EnqueueStatements {
  return { enqueue: enqueueSql(schema), find: findEventsSql(schema), serialize: serializeSql(schema) }
}

/**
 * Makes the order of each key its order of commit: whoever else serializes it waits until this transaction ends. A
 * statement of its own, so that ids are taken after the lock.
 */
export async function serializeKeys(
  writer: AdaptedWriter,
  statements: EnqueueStatements,
  events: readonly CheckedOutboxEvent[],
): Promise<void> {
  const keys = new Set(events.flatMap(({ orderingKey }) => (orderingKey === undefined ? [] : [orderingKey])))
  if (keys.size > 0) await writer.query(statements.serialize, [JSON.stringify([...keys])])
}

/** Writes the events in one statement, and answers in the order in which they were given. */
export async function writeEvents(
  writer: AdaptedWriter,
  statements: EnqueueStatements,
  events: readonly CheckedOutboxEvent[],
): Promise<readonly Enqueued[]> {
  const newEventId = newEventIds()
  const eventIds = events.map(({ eventId }) => eventId ?? newEventId())
  /** Where an event id was first given; given once more it is the same event. */
  const positions = new Map<string, number>()
  for (const [position, eventId] of eventIds.entries())
    if (!positions.has(eventId)) positions.set(eventId, position)

  const texts = [...positions].flatMap(([eventId, position]) => {
    const event = events[position]
    return event === undefined ? [] : [eventText(event, eventId, position)]
  })
  const { rows } = await writer.query(statements.enqueue, [eventsText(texts)])
  const ids = idsIn(rows)
  const written = new Set(rows.flatMap((row) => (row['written'] === true ? [row['event']] : [])))

  // Not there when this statement began, and there when it came to write them: somebody else was faster.
  const unseen = [...positions.keys()].filter((eventId) => !ids.has(eventId))
  const others = unseen.length === 0 ? NONE : await findIds(writer, statements, unseen)
  return eventIds.map((eventId, position) => {
    const id = ids.get(eventId) ?? others.get(eventId)
    if (id === undefined) throw neitherWrittenNorFound(eventId)
    return { id, eventId, written: positions.get(eventId) === position && written.has(eventId) }
  })
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

function eventText(event: CheckedOutboxEvent, eventId: string, position: number): string {
  const { type, orderingKey, headers, availableAt, maxAttempts, payload } = event
  const fields = JSON.stringify({
    position,
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
