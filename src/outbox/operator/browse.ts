/** What the outbox holds, for those who operate it: lists, one event with all there is to know, one page at a time. */
import { LeaseholdError } from '../../errors.ts'
import { type BrowseOptions, looking as lookingFor } from '../../operator/looking.ts'
import { checkPage, invalid } from '../../operator/request-checks.ts'
import { values } from '../../operator/statement-values.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { bucketsOf, notedIds, outboxOf } from './browse-buckets.ts'
import { checkFilter, checkId, type EventFilter, filterSql, statusesOf } from './browse-filter.ts'
import type { Status } from '../transitions.ts'

/** An event without its payload, as lists show it. */
export interface EventSummary {
  readonly id: string
  readonly eventId: string
  readonly type: string
  readonly orderingKey: string | null
  readonly status: Status
  readonly attempts: number
  readonly maxAttempts: number | null
  readonly createdAt: Date
  readonly availableAt: Date | null
  readonly claimedAt: Date | null
  readonly claimedBy: string | null
  readonly lockedUntil: Date | null
  readonly token: bigint
  readonly publishedAt: Date | null
  readonly lastError: string | null
  /** A dead event that holds up its key. */
  readonly parked: boolean
}

export interface EventDetails extends EventSummary {
  readonly payload: unknown
  readonly headers: Readonly<Record<string, string>>
  /** The event of its key that has to be finished first. */
  readonly waitsFor: WaitedFor | null
}

export type WaitedFor = Pick<EventSummary, 'id' | 'status' | 'parked' | 'attempts' | 'lastError'>

export interface PageOptions extends BrowseOptions {
  /** Default 50, at most 1,000. */
  readonly limit?: number | undefined
  /** Only events with smaller ids: where the page before ended. */
  readonly before?: string | undefined
}

export interface EventPage {
  /** Newest first. */
  readonly events: readonly EventSummary[]
  /** What `before` is for the next page; null when this was the last. */
  readonly next: string | null
}

/** One page of events, newest first: by the number they got, which is nearly the order in which they were written. */
export async function listEvents(
  db: Database,
  filter: EventFilter = {},
  options: PageOptions = {},
): Promise<EventPage> {
  const { limit = 50, before, schema } = options
  checkFilter(filter)
  if (before !== undefined) checkBefore(before)
  checkPage(limit)
  return looking(db, options, 'listing the events', async (tx) => {
    const found: EventSummary[] = []
    for (const bucket of await bucketsOf(tx, schema)) {
      const value = values()
      const conditions = [
        `bucket = ${value(bucket, 'smallint')}`,
        ...(before === undefined ? [] : [`id < ${value(before, 'bigint')}`]),
        // No index knows what is in flight; the notes of claims do.
        ...(statusesOf(filter).every((status) => status === 'CLAIMED')
          ? [`id = any (${notedIds(schema, value(bucket, 'smallint'))})`]
          : []),
        filterSql(filter, statusesOf(filter), value).whole,
      ]
      // By o.id, the number: "id" would be the text that is selected. One more than the page has: whether there is another.
      const { rows } = await tx.query<SummaryRow>({
        text: `select ${SUMMARY} from ${outboxOf(schema)} as o where ${conditions.join(' and ')}
order by o.id desc limit ${value(limit + 1, 'int')}`,
        values: value.all,
      })
      found.push(...rows.map(summary))
    }
    // Each bucket brought its newest, so the newest of all are among them.
    const newest = found.sort((a, b) => (BigInt(a.id) > BigInt(b.id) ? -1 : 1))
    const events = newest.slice(0, limit)
    return { events, next: newest.length > limit ? (events.at(-1)?.id ?? null) : null }
  })
}

/** One event by its number or its event id, with its payload and what it waits for. */
export async function showEvent(
  db: Database,
  id: string,
  options: BrowseOptions = {},
): Promise<EventDetails> {
  checkId(id)
  const { schema } = options
  return looking(db, options, 'looking for the event', async (tx) => {
    for (const bucket of await bucketsOf(tx, schema)) {
      const value = values()
      const { rows } = await tx.query<SummaryRow & Pick<EventDetails, 'payload' | 'headers'>>({
        text: `select ${SUMMARY}, payload, headers from ${outboxOf(schema)}
where bucket = ${value(bucket, 'smallint')} and ${filterSql({ ids: [id] }, statusesOf({}), value).whole}`,
        values: value.all,
      })
      const [row] = rows
      if (row === undefined) continue
      const { payload, headers, ...rest } = row
      return { ...summary(rest), payload, headers, waitsFor: await waitedFor(tx, schema, bucket, rest) }
    }
    throw new LeaseholdError('EVENT_NOT_FOUND', `No event has the id ${id}.`, {
      remedy: '`leasehold outbox list` shows what is there; retention may have removed it.',
    })
  })
}

/** Who stands in front of it: as the claims see it, what is in flight first, then by id. */
async function waitedFor(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  { id, orderingKey, status }: SummaryRow,
): Promise<WaitedFor | null> {
  if (status !== 'PENDING' || orderingKey === null) return null
  const { rows } = await tx.query<WaitedFor>({
    text: `select id::text as id, status, parked, attempts, last_error as "lastError"
from ${outboxOf(schema)} as o
where bucket = $1::smallint and ordering_key = $2::text and (indexed_status in ('PENDING', 'CLAIMED') or parked)
order by (o.indexed_status <> 'CLAIMED'), o.id limit 1`,
    values: [bucket, orderingKey],
  })
  const [first] = rows
  return first === undefined || first.id === id ? null : first
}

/** Looks in one read-only transaction, for a bounded time. */
export async function looking<Found>(
  db: Database,
  options: BrowseOptions,
  what: string,
  look: (tx: Queryable) => Promise<Found>,
): Promise<Found> {
  const remedy =
    'Choose fewer: by status dead, by ids, or with `before` a page further down; or allow more time.'
  return lookingFor(db, options, { what, remedy }, look)
}

type SummaryRow = Omit<EventSummary, 'token'> & { readonly token: string }

const SUMMARY = `id::text as id, event_id as "eventId", event_type as type, ordering_key as "orderingKey", status,
  attempts, max_attempts as "maxAttempts", created_at as "createdAt", available_at as "availableAt",
  claimed_at as "claimedAt", claimed_by as "claimedBy", locked_until as "lockedUntil", lock_token::text as token,
  published_at as "publishedAt", last_error as "lastError", parked`

function summary(row: SummaryRow): EventSummary {
  return { ...row, token: BigInt(row.token) }
}

function checkBefore(before: string): void {
  if (/^\d{1,18}$/.test(before)) return
  throw invalid('before', before, 'Give the number of an event: `next` of the page before.')
}
