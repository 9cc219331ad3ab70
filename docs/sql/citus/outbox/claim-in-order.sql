-- Claims the next rows that are due and have no ordering key, from the cursor on. Rows with two or more expiries are
-- left to `claim suspects`.
-- Parameters: $1 bucket, $2 and $3 cursor, $4 ids to leave out (array), $5 row limit, $6 byte budget, $7 owner,
--   $8 lease in ms
/* leasehold:claim in order outbox */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n), any (array(select …))
with next as materialized (  -- the next rows that are due; all of them are locked, also those that do not fit
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes
  from leasehold.outbox as t
  where bucket = $1::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries < 2
    and (available_at, id) >= ((select $2::timestamp with time zone), (select $3::bigint))
    and id <> all ((select $4::bigint[])::bigint[])
  order by t.available_at, t.id limit (select $5::int) for update skip locked
),
fitting as materialized (  -- as many as fit into the byte budget, but at least one
  select *
  from (select *, sum(bytes) over (order by available_at, id rows unbounded preceding) as total from next) as sized
  where total = bytes or total <= $6::float8
)
, leased as (
  update leasehold.outbox as t
  set locked_until = now() + $8::float8 * interval '1 millisecond', claimed_by = $7::text,
    -- the first token of a row is the time, each later one is one higher
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $1::smallint and t.id = any (array(select id from fitting))
  returning t.*
)
select t.lock_token, date_part('epoch', t.locked_until) * 1000,
  coalesce(pg_column_size(payload) + pg_column_size(headers), 0), (t.available_at at time zone 'utc')::text, t.id,
  t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts, t.max_attempts, t.created_at,
  (select count(*)::int from next) as found
from leased as t
