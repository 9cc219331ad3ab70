/** What operators read of the outbox: pages of events, and one event with everything that is known of it. */
import {
  type BrowseOptions,
  listNewestFirst,
  type PageOptions,
  readAllPages,
  readOnly,
} from '../../operations/browse.ts'
import { isEmptyFilter } from '../../operations/bulk-change.ts'
import { readClock } from '../../operations/bulk-change-sql.ts'
import type { NamedRow } from '../../operations/named-rows.ts'
import { LeaseholdError } from '../../errors.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import { positionalParameters } from '../../postgres/parameters.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { checkFilter, checkId, type EventFilter, filterSql, outboxOf, statusesOf, QUEUED } from './filter.ts'
import { stringifiable } from '../../stringifiable.ts'
import { HISTORY_SQL, type HistoryEntry, readHistory, type StoredHistory } from '../history.ts'
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
  /** When the worker process that holds it, or has published it, claimed it. */
  readonly claimedAt: Date | null
  readonly claimedBy: string | null
  readonly lockedUntil: Date | null
  readonly token: bigint
  readonly publishedAt: Date | null
  /** The worker process that published it, under the token of the event. Null also if no relay of Leasehold did. */
  readonly publishedBy: string | null
  readonly deadAt: Date | null
  readonly lastError: string | null
  /** A dead event that holds up its key. */
  readonly parked: boolean
}

export interface EventDetails extends EventSummary {
  readonly payload: unknown
  readonly headers: Readonly<Record<string, string>>
  /** What became of its attempts, and what operators did with it, the newest last; of more than 20, the newest 20. */
  readonly history: readonly HistoryEntry[]
  /** The event of its key that has to be finished first. */
  readonly waitsFor: WaitedFor | null
}

export type WaitedFor = Pick<EventSummary, 'id' | 'status' | 'parked' | 'attempts' | 'lastError'>

export interface EventPage {
  /** Newest first. */
  readonly events: readonly EventSummary[]
  /** What `before` is for the next page; null when this was the last. */
  readonly next: string | null
}

/** One page of events, newest first. */
export async function listEvents(
  db: Database,
  filter: EventFilter = {},
  options: PageOptions = {},
): Promise<EventPage> {
  checkFilter(filter)
  const { schema } = options
  const statuses = statusesOf(filter)
  const { rows, next } = await listNewestFirst<SummaryRow>(db, options, {
    table: outboxOf(schema),
    bucketed: true,
    row: 'an event',
    isIndexed: isIndexed(filter, statuses),
    where: async (parameter, tx, bucket) => {
      const fewIds = await unfinishedIds(tx, schema, bucket, statuses)
      return [
        ...(fewIds === undefined ? [] : [`id = any (${parameter(fewIds, 'bigint[]')})`]),
        filterSql(filter, statuses, parameter),
      ]
    },
    columns: SUMMARY,
    what: 'Listing the events',
    remedy: TOO_MANY,
  })
  return { events: rows.map(summary), next }
}

/** Ids, dead events and unfinished events have indexes; without any condition the newest are simply read. */
function isIndexed(filter: EventFilter, statuses: readonly Status[]): boolean {
  const isUnfinished = (status: Status): boolean => status === 'PENDING' || status === 'CLAIMED'
  return (
    filter.ids !== undefined ||
    isEmptyFilter(filter) ||
    statuses.every((status) => status === 'DEAD') ||
    statuses.every(isUnfinished)
  )
}

/** The advice when a query takes too long. */
export const TOO_MANY =
  'Choose fewer events: by status dead, by ids, or with `before` a later page; or allow more time.'

/** The events that an operator names, and why each is not changed. */
export async function findNamed(
  db: Database,
  schema: string,
  ids: readonly string[],
  whyNot: (event: EventSummary, now: Date) => string | undefined,
): Promise<NamedRow[]> {
  const now = new Date((await readClock(db)) * 1_000)
  const events = await readAllPages(async (page) => {
    const { events: rows, next } = await listEvents(db, { ids }, { schema, ...page })
    return { rows, next }
  })
  return events.map((event) => ({ id: event.id, eventId: event.eventId, whyNot: whyNot(event, now) }))
}

/** One event by its number or its event id, with its payload and what it waits for. */
export async function showEvent(
  db: Database,
  id: string,
  options: BrowseOptions = {},
): Promise<EventDetails> {
  checkId(id)
  const { schema } = options
  return readOnly(db, options, { what: 'Finding the event', remedy: TOO_MANY }, async (tx) => {
    const { bucket, payload, headers, history, ...rest } = await findEvent(tx, schema, id)
    const waitsFor = await waitedFor(tx, schema, bucket, rest)
    return stringifiable({ ...summary(rest), payload, headers, history: readHistory(history), waitsFor })
  })
}

/** Finds the event with this number or event id in all buckets; fails if there is none. */
export async function findEvent(
  tx: Queryable,
  schema: string | undefined,
  id: string,
): Promise<SummaryRow & DetailsRow & { readonly bucket: number }> {
  for (const bucket of await ownBuckets(tx, schema)) {
    const parameter = positionalParameters()
    const { rows } = await tx.query<SummaryRow & DetailsRow>({
      text: `select ${SUMMARY}, payload, headers, ${HISTORY_SQL} as history from ${outboxOf(schema)} as r
where bucket = ${parameter(bucket, 'smallint')} and ${filterSql({ ids: [id] }, statusesOf({}), parameter)}`,
      values: parameter.values,
    })
    const [row] = rows
    if (row !== undefined) return { ...row, bucket }
  }
  throw new LeaseholdError('EVENT_NOT_FOUND', `No event has the id ${id}.`, {
    remedy: '`leasehold outbox list` shows what is there; retention may have removed it.',
  })
}

/** With more unfinished events than this, a page is found along the primary key, from the newest event on. */
const MAX_UNFINISHED = 10_000

/**
 * The ids of unfinished events, along their indexes. Where few events are unfinished, a scan from the newest event on
 * would read everything that was published since. Undefined: there are many, or finished events are asked for as well.
 */
async function unfinishedIds(
  tx: Queryable,
  schema: string | undefined,
  bucket: number | undefined,
  statuses: readonly Status[],
): Promise<string[] | undefined> {
  if (!statuses.every((status) => status === 'PENDING' || status === 'CLAIMED')) return undefined
  const unkeyed = "status = 'PENDING' and ordering_key is null"
  const scans = [
    [`${unkeyed} and expiries < 2`, 'available_at, id'],
    [`${unkeyed} and expiries >= 2`, 'available_at, id'],
    [QUEUED, 'ordering_key, id'],
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

/** The event of its key that is in flight, or else the head of the key, if that is another event. */
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
    (select id ${ofKey} and ${QUEUED} order by id limit 1)
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

type DetailsRow = Pick<EventDetails, 'payload' | 'headers'> & { readonly history: StoredHistory }

type SummaryRow = Omit<EventSummary, 'token'> & { readonly token: string }

const SUMMARY = `r.id::text as id, event_id as "eventId", event_type as type, ordering_key as "orderingKey", status,
  attempts, max_attempts as "maxAttempts", expiries, created_at as "createdAt", available_at as "availableAt",
  claimed_at as "claimedAt", claimed_by as "claimedBy", locked_until as "lockedUntil", lock_token::text as token,
  published_at as "publishedAt", published_by as "publishedBy", dead_at as "deadAt", last_error as "lastError", parked`

function summary(row: SummaryRow): EventSummary {
  return stringifiable({ ...row, token: BigInt(row.token) })
}
