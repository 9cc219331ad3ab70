/** What the outbox holds, for those who operate it: lists, one event with all there is to know, one page at a time. */
import { LeaseholdError } from '../../errors.ts'
import { type BrowseOptions, looking as lookingFor } from '../../admin/looking.ts'
import { checkPage, invalid } from '../../admin/request-checks.ts'
import { values } from '../../admin/statement-values.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { bucketsOf, outboxOf, UNFINISHED } from './browse-buckets.ts'
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
  /** How many of its leases have expired. */
  readonly expiries: number
  readonly createdAt: Date
  readonly availableAt: Date
  readonly claimedAt: Date | null
  readonly claimedBy: string | null
  readonly lockedUntil: Date | null
  readonly token: bigint
  readonly publishedAt: Date | null
  readonly deadAt: Date | null
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
      const fewIds = await unfinishedIds(tx, schema, bucket, statusesOf(filter))
      const conditions = [
        `bucket = ${value(bucket, 'smallint')}`,
        ...(before === undefined ? [] : [`id < ${value(before, 'bigint')}`]),
        ...(fewIds === undefined ? [] : [`id = any (${value(fewIds, 'bigint[]')})`]),
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

/** More than these are not collected; then a page is found along the primary key, from the newest event on. */
const MAX_UNFINISHED = 10_000

/**
 * The few unfinished events among many finished ones, along their indexes: from the newest event on, PostgreSQL would
 * read all that was published since. Undefined: there are many, or other states are wanted as well.
 */
async function unfinishedIds(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  statuses: readonly Status[],
): Promise<string[] | undefined> {
  if (!statuses.every((status) => status === 'PENDING' || status === 'CLAIMED')) return undefined
  const unkeyed = "status = 'PENDING' and ordering_key is null"
  const scans = [
    [`${unkeyed} and expiries < 2`, 'available_at, id'],
    [`${unkeyed} and expiries >= 2`, 'available_at, id'],
    [UNFINISHED, 'ordering_key, id'],
    ["status = 'CLAIMED'", 'ordering_key'],
  ].map(
    ([where, order]) =>
      `(select id from ${outboxOf(schema)} where bucket = $1::smallint and ${where} order by ${order} limit $2::int)`,
  )
  const { rows } = await tx.query<{ id: string }>({
    text: `select id::text as id from (${scans.join('\nunion all ')}) as unfinished limit $2::int`,
    values: [bucket, MAX_UNFINISHED + 1],
  })
  return rows.length > MAX_UNFINISHED ? undefined : rows.map(({ id }) => id)
}

/** The event of its key that is in flight or else the head of the key, if that is another event. */
async function waitedFor(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  { id, orderingKey, status }: SummaryRow,
): Promise<WaitedFor | null> {
  if (status !== 'PENDING' || orderingKey === null) return null
  const ofKey = `from ${outboxOf(schema)} where bucket = $1::smallint and ordering_key = $2::text`
  const { rows } = await tx.query<WaitedFor>({
    text: `with first as (
  select coalesce(
    (select id ${ofKey} and status = 'CLAIMED'),
    (select id ${ofKey} and ${UNFINISHED} order by id limit 1)
  ) as id
)
select o.id::text as id, status, parked, attempts, last_error as "lastError"
from ${outboxOf(schema)} as o
where o.bucket = $1::smallint and o.id = (select id from first)`,
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
  attempts, max_attempts as "maxAttempts", expiries, created_at as "createdAt", available_at as "availableAt",
  claimed_at as "claimedAt", claimed_by as "claimedBy", locked_until as "lockedUntil", lock_token::text as token,
  published_at as "publishedAt", dead_at as "deadAt", last_error as "lastError", parked`

function summary(row: SummaryRow): EventSummary {
  return { ...row, token: BigInt(row.token) }
}

function checkBefore(before: string): void {
  if (/^\d{1,18}$/.test(before)) return
  throw invalid('before', before, 'Give the number of an event: `next` of the page before.')
}
