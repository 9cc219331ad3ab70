import { listEvents, type EventSummary } from '../../outbox/admin/browse.ts'
import type { Status } from '../../outbox/transitions.ts'
import type { Run } from '../command.ts'
import { withOutbox } from '../database.ts'
import { beforeFlag, limitFlag } from '../flags.ts'
import { duration, printList, relative } from '../output.ts'
import { readFilter } from './filter-flags.ts'

/** `leasehold outbox list` */
export async function listCommand(run: Run): Promise<number> {
  const { flags } = run
  const now = new Date()
  const filter = readFilter(flags, now)
  const limit = limitFlag(flags)
  const before = beforeFlag(flags, 'the id of an event')
  const { events, next } = await withOutbox(run, async (db, schema) =>
    listEvents(db, filter, { schema, limit, before }),
  )
  return printList(run, {
    what: 'events',
    items: events,
    next,
    nextFlag: '--before',
    chosenBy: { ...filter, before },
    none: 'The outbox is empty.',
    headings: ['ID', 'STATUS', 'TYPE', 'KEY', 'FAILED', 'WRITTEN', 'NOTE'],
    line: (event) => line(event, now),
  })
}

function line(event: EventSummary, now: Date): string[] {
  const { id, status, type, orderingKey, attempts, createdAt } = event
  const written = `${duration(now.getTime() - createdAt.getTime())} ago`
  return [id, status, type, orderingKey ?? '-', String(attempts), written, note(event, now)]
}

/** The one thing that matters about it in its state. */
function note(event: EventSummary, now: Date): string {
  const { status, availableAt, claimedBy, publishedAt, lastError, parked, attempts } = event
  const due = availableAt > now ? `due ${relative(availableAt, now)}` : undefined
  const notes: Readonly<Record<Status, readonly (string | null | undefined)[]>> = {
    PENDING: [due, attempts > 0 ? lastError : null],
    CLAIMED: [`by ${claimedBy}`],
    PUBLISHED: [publishedAt === null ? null : `published ${relative(publishedAt, now)}`],
    DEAD: [parked ? 'parked' : null, lastError],
  }
  return notes[status].filter(Boolean).join(': ')
}
