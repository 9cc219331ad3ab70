import { quoteLiteral, quoteQualified } from '../../postgres/identifiers.ts'

/** The columns that a producer sets. */
const COLUMNS = 'event_id, event_type, ordering_key, payload, headers, available_at, max_attempts'

/**
 * Writes events in the order given. `$1` is a JSON text, because that is one parameter for every driver, whatever the
 * number of events.
 *
 * A subquery finds events that exist already, not a join: the planner estimates any JSON at 100 rows, and with a join it
 * read a whole outbox of 30,000 events, so that one event took 25 ms instead of 1. The subquery uses the unique index.
 */
export function enqueueSql(schema: string): string {
  const outbox = quoteQualified(schema, 'outbox')
  return `/* leasehold:enqueue outbox */
with given as materialized (
  select position, event_id, event_type, ordering_key, coalesce(payload, 'null') as payload, headers,
    coalesce(available_at, now()) as available_at, max_attempts, case when chosen then (
      select outbox.id from ${outbox} as outbox where outbox.event_id = event.event_id and outbox.bucket = 0
    ) end as known
  from json_to_recordset($1::text::json) as event (
    position int, event_id uuid, chosen boolean, event_type text, ordering_key text, payload jsonb, headers jsonb,
    available_at timestamptz, max_attempts int
  )
),
written as (
  insert into ${outbox} (${COLUMNS})
  select ${COLUMNS} from given where known is null order by position
  on conflict (event_id, bucket) do nothing
  returning id, event_id
)
select event_id::text as event, id::text as id, true as written from written
union all
select event_id::text, known::text, false from given where known is not null`
}

/** Finds the rows of events that a concurrent transaction wrote; `$1` is a JSON text of event ids. */
export function findEventsSql(schema: string): string {
  return `/* leasehold:find events outbox */
select wanted as event, (
    select outbox.id::text from ${quoteQualified(schema, 'outbox')} as outbox
    where outbox.event_id = wanted::uuid and outbox.bucket = 0
  ) as id
from json_array_elements_text($1::text::json) as wanted`
}

/**
 * Locks ordering keys until the end of the transaction; `$1` is a JSON text of keys. Another transaction that locks one of
 * them waits. All callers lock in the same order, so that two calls do not deadlock.
 */
export function serializeSql(schema: string): string {
  return `/* leasehold:serialize outbox */
select pg_advisory_xact_lock(lock)::text as locked      -- some drivers cannot read void
from (
  select distinct hashtextextended(${quoteLiteral(`${schema}.outbox:`)} || key, 0) as lock
  from json_array_elements_text($1::text::json) as key
  order by lock
) as locks`
}
