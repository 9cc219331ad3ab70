import { quoteQualified } from '../../postgres/identifiers.ts'

/** The columns that a producer decides about. */
const WRITTEN = 'event_id, event_type, ordering_key, payload, headers, available_at, max_attempts'

/**
 * What was given: `$1` is a JSON text, because that is one parameter for every driver, whatever the number of events.
 *
 * No join looks for what is known already: the planner takes any JSON for 100 rows. Joined with an outbox of 30,000 one
 * event took 25 ms instead of 1, because the whole table was read. The subquery is answered by the unique index.
 */
function given(outbox: string): string {
  return `given as materialized (
  select place, event_id, event_type, ordering_key, coalesce(payload, 'null') as payload, headers,
    coalesce(available_at, now()) as available_at, max_attempts, case when chosen then (
      select outbox.id from ${outbox} as outbox where outbox.bucket = 0 and outbox.event_id = event.event_id
    ) end as known
  from json_to_recordset($1::text::json) as event (
    place int, event_id uuid, chosen boolean, event_type text, ordering_key text, payload jsonb, headers jsonb,
    available_at timestamptz, max_attempts int
  )
)`
}

/** Writes events of which no two have the same ordering key; half the work for the planner, and the usual case. */
export function enqueueSql(schema: string): string {
  const outbox = quoteQualified(schema, 'outbox')
  return `with ${given(outbox)},
written as (
  insert into ${outbox} (${WRITTEN})
  select ${WRITTEN} from given where known is null order by place
  on conflict (bucket, event_id) do nothing
  returning id, event_id
)
select event_id::text as event, id::text as id, true as written from written
union all
select event_id::text, known::text, false from given where known is not null`
}

/**
 * Writes events of which some have the same ordering key.
 *
 * Of the events of one key the first is inserted as `heads`, the others as `followers`, which wait behind it from the
 * start: a relay would otherwise look at each of them only to find that it has to wait. They become visible together
 * with their head, and whoever publishes that takes the next one on.
 *
 * Nothing may wait behind an event that this statement did not write, because that may be published already and nobody
 * would come back for those behind it. So the head of a key is its first event that is not known yet; and when another
 * transaction turns out to have written just that one at the same moment, its followers wait for nothing.
 *
 * `placed` is read to its end by the sort below the second insert. So the heads are written, and have their ids, before
 * the first of the followers.
 */
export function enqueueLinesSql(schema: string): string {
  const outbox = quoteQualified(schema, 'outbox')
  return `with ${given(outbox)},
fresh as materialized (
  select ${WRITTEN}, place,
    ordering_key is not null and row_number() over (partition by ordering_key order by place) > 1 as follows
  from given
  where known is null
),
heads as (
  insert into ${outbox} (${WRITTEN})
  select ${WRITTEN} from fresh where not follows order by place
  on conflict (bucket, event_id) do nothing
  returning id, event_id, ordering_key
),
placed as materialized (
  select ${WRITTEN}, place,
    (ordering_key in (select ordering_key from heads where ordering_key is not null)) as behind
  from fresh
  where follows
),
followers as (
  insert into ${outbox} (${WRITTEN}, behind)
  select ${WRITTEN}, behind from placed order by place
  on conflict (bucket, event_id) do nothing
  returning id, event_id
)
select event_id::text as event, id::text as id, true as written from heads
union all
select event_id::text, id::text, true from followers
union all
select event_id::text, known::text, false from given where known is not null`
}

/** The ids of events that another transaction wrote while this one was about to; `$1` is a JSON text of event ids. */
export function findEventsSql(schema: string): string {
  return `select wanted as event, (
    select outbox.id::text from ${quoteQualified(schema, 'outbox')} as outbox
    where outbox.bucket = 0 and outbox.event_id = wanted::uuid
  ) as id
from json_array_elements_text($1::text::json) as wanted`
}
