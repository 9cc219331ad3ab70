import { quoteLiteral, quoteQualified } from '../../postgres/identifiers.ts'

/** The columns that a producer sets. */
const COLUMNS = 'event_id, event_type, ordering_key, payload, headers, available_at, max_attempts'

/**
 * Writes events in the order given. `$1` is a JSON text, because that is one parameter for every driver, whatever the
 * number of events. It answers with the events that were written, and with those that exist already.
 */
export function enqueueSql(schema: string): string {
  return `/* leasehold:enqueue outbox */
with given as materialized (
  select position, event_id, event_type, ordering_key, coalesce(payload, 'null') as payload, headers,
    coalesce(available_at, now()) as available_at, max_attempts, ${find(schema)} as known
  from json_to_recordset($1::text::json) as event (
    position int, event_id uuid, event_type text, ordering_key text, payload jsonb, headers jsonb,
    available_at timestamptz, max_attempts int
  )
),
written as (
  insert into ${quoteQualified(schema, 'outbox')} (${COLUMNS})
  select ${COLUMNS} from given where known is null order by position
  on conflict do nothing
  returning id, event_id
)
select event_id::text as event, id::text as id, true as written from written
union all
select event_id::text, known::text, false from given where known is not null`
}

/** The same where Citus distributes the outbox: it has no INSERT within WITH, and the bucket has to be named. */
export function enqueueOnCitusSql(schema: string): string {
  return `/* leasehold:enqueue outbox */
select event, id, written from ${quoteQualified(schema, 'enqueue_events')}($1::text)`
}

/** Finds the rows of events that a concurrent transaction wrote; `$1` is a JSON text of event ids. */
export function findEventsSql(schema: string): string {
  return `/* leasehold:find events outbox */
select event_id::text as event, ${find(schema)}::text as id
from (select wanted::uuid as event_id from json_array_elements_text($1::text::json) as wanted) as events`
}

/** The row of the event with this `event_id`; null where none is given. */
function find(schema: string): string {
  return `case when event_id is not null then ${quoteQualified(schema, 'find_event')}(event_id) end`
}

/**
 * The first number of the advisory locks of ordering keys, `LHLD` in ASCII; the second is the hash of a key. An application
 * that locks numbers of its own does not meet them by chance, and doctor recognises them. The triggers that place rows in
 * buckets take the same locks (`migrations/002_outbox.sql`, `003_webhooks.sql`).
 */
export const ORDERING_KEY_LOCKS = 1_279_806_532

/**
 * Locks ordering keys until the end of the transaction; `$1` is a JSON text of keys. Another transaction that locks one of
 * them waits. All callers lock in the same order, so that two calls do not deadlock.
 */
export function serializeSql(schema: string): string {
  return `/* leasehold:serialize outbox */
select pg_advisory_xact_lock(${ORDERING_KEY_LOCKS}, lock)::text as locked      -- some drivers cannot read void
from (
  select distinct hashtext(${quoteLiteral(`${schema}.outbox:`)} || key) as lock
  from json_array_elements_text($1::text::json) as key
  order by lock
) as locks`
}
