import { listEvents, type EventSummary } from '../../outbox/operator/browse.ts'
import type { Status } from '../../outbox/transitions.ts'
import type { Run } from '../run.ts'
import { columns, duration, printableJson, relative } from '../text-columns.ts'
import { isSet, wholeFlag, textFlag, wrong } from '../flag-values.ts'
import { readFilter } from './filter-flags.ts'
import { withOutbox } from './with-outbox.ts'

const LARGEST_PAGE = 1_000

/** `leasehold outbox list` */
export async function listCommand(run: Run): Promise<number> {
  const { print, flags, terminal } = run
  const now = new Date()
  const filter = readFilter(flags, now)
  const limit = wholeFlag(flags, 'limit', LARGEST_PAGE)
  const before = textFlag(flags, 'before')
  if (before !== undefined && !/^\d{1,18}$/.test(before))
    throw wrong('before', before, 'give the id of an event.')
  const { events, next } = await withOutbox(run, async (db, schema) =>
    listEvents(db, filter, { schema, limit, before }),
  )
  if (isSet(flags, 'json')) {
    print(`${printableJson({ events, next })}\n`)
    return 0
  }
  if (events.length === 0) {
    print(
      Object.keys(filter).length === 0 && before === undefined
        ? 'The outbox is empty.\n'
        : 'No such events.\n',
    )
    return 0
  }
  const lines = events.map((event) => line(event, now))
  print(
    `${columns([['ID', 'STATUS', 'TYPE', 'KEY', 'FAILED', 'WRITTEN', 'NOTE'], ...lines], terminal.width)}\n`,
  )
  if (next !== null) print(`There are more: --before ${next} shows the next ones.\n`)
  return 0
}

function line(event: EventSummary, now: Date): string[] {
  const { id, status, type, orderingKey, attempts, createdAt } = event
  const written = `${duration(now.getTime() - createdAt.getTime())} ago`
  return [id, status, type, orderingKey ?? '-', String(attempts), written, note(event, now)]
}

/** The one thing that matters about it in its state. */
function note(event: EventSummary, now: Date): string {
  const { status, availableAt, claimedBy, publishedAt, lastError, parked, attempts } = event
  const due = availableAt !== null && availableAt > now ? `due ${relative(availableAt, now)}` : undefined
  const notes: Readonly<Record<Status, readonly (string | null | undefined)[]>> = {
    PENDING: [due, attempts > 0 ? lastError : null],
    CLAIMED: [`by ${claimedBy}`],
    PUBLISHED: [publishedAt === null ? null : `published ${relative(publishedAt, now)}`],
    DEAD: [parked ? 'parked' : null, lastError],
  }
  return notes[status].filter(Boolean).join(': ')
}
