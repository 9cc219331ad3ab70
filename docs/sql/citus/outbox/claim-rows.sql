-- Claims the given rows, also suspects, as far as they can be claimed now; of an ordering key only the first unfinished
-- row.
-- Parameters: $1 ids (array), $2 bucket, $3 owner, $4 lease in ms
/* leasehold:claim rows outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), any (array(select …))
with wanted as materialized (  -- the planner takes any (array(select …)) for ten rows
  select * from unnest($1::bigint[]) as wanted (id)
),
taken as materialized (
  select t.id from leasehold.outbox as t
  where t.bucket = $2::smallint and t.id = any (array(select id from wanted))
    and ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)) is true
    and (t.ordering_key is null or (  -- or the first unfinished row of its key, of which no other row is leased
      (select h.id from leasehold.outbox as h
        where h.bucket = $2::smallint and (status = 'PENDING' or parked)
          and h.ordering_key >= t.ordering_key and h.ordering_key <= t.ordering_key
        order by h.ordering_key, h.id limit 1) = t.id
      and (select f.id from leasehold.outbox as f
        where f.bucket = $2::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id
        limit 1) is null))
  for update skip locked
)
, leased as (
  update leasehold.outbox as t
  set locked_until = now() + $4::float8 * interval '1 millisecond', claimed_by = $3::text,
    -- the first token of a row is the time, each later one is one higher
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $2::smallint and t.id = any (array(select id from taken))
  returning t.*
)
select t.lock_token, date_part('epoch', t.locked_until) * 1000,
  coalesce(pg_column_size(payload) + pg_column_size(headers), 0), (t.available_at at time zone 'utc')::text, t.id,
  t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts, t.max_attempts, t.created_at
from leased as t
