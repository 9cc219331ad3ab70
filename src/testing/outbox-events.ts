import { readAllPages } from '../operations/browse.ts'
import { type EventDetails, listEvents, showEvent } from '../outbox/admin/browse.ts'
import type { EventFilter } from '../outbox/admin/filter.ts'
import type { Database } from '../postgres/database.ts'

/** The events of the outbox with their payloads, oldest first: `outboxEvents(db, { status: 'PUBLISHED' })`. */
export async function outboxEvents(
  db: Database,
  filter: EventFilter = {},
  options: { readonly schema?: string } = {},
): Promise<readonly EventDetails[]> {
  const found = await readAllPages(async (page) => {
    const { events: rows, next } = await listEvents(db, filter, { ...options, ...page })
    return { rows, next }
  })
  const events: EventDetails[] = []
  for (const { id } of found.toReversed()) events.push(await showEvent(db, id, options))
  return events
}
