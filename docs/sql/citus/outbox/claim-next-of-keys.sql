-- Claims the first unfinished row of each of the given ordering keys, if it can be claimed now. Sent after the
-- settlement of the row before it, in the same pipeline. If two claims pick two rows of one key, a unique index refuses
-- the second.
-- Parameters: $1 ordering keys (array), $2 ids to leave out (array), $3 bucket, $4 byte budget, $5 row limit, $6 owner,
--   $7 lease in ms
/* leasehold:claim next of keys outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), (select $n), any (array(select …))
with heads as materialized (  -- the first unfinished row of each key, if it can be claimed and none is leased
  select head.*, sum(head.bytes) over (order by head.id rows unbounded preceding) as total  -- for the byte budget
  from unnest((select $1::text[])) as wanted (ordering_key) cross join lateral (
    select o.id, o.ordering_key, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
      ((status = 'PENDING') and available_at <= now() and coalesce(claimed_by is null or locked_until is null, true)
        and expiries < 2 and id <> all ((select $2::bigint[])::bigint[])) is true as claimable
    from leasehold.outbox as o
    where o.bucket = $3::smallint and (status = 'PENDING' or parked)
      and o.ordering_key >= wanted.ordering_key and o.ordering_key <= wanted.ordering_key
    order by o.ordering_key, o.id limit 1  -- a range: with "=" the primary key has this order too
  ) as head
  where head.claimable and (select f.id from leasehold.outbox as f
      where f.bucket = $3::smallint and f.ordering_key = head.ordering_key and (status = 'CLAIMED') and f.id <> head.id
      limit 1) is null
),
taken as materialized (  -- within the byte budget, at least one; rows that are locked or have changed are left out
  select t.id from leasehold.outbox as t
  where t.bucket = $3::smallint and t.id = any (array(select id from heads where total = bytes or total <= $4::float8))
    and ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)) is true
  order by t.id limit (select $5::int) for update skip locked
)
, leased as (
  update leasehold.outbox as t
  set locked_until = now() + $7::float8 * interval '1 millisecond', claimed_by = $6::text,
    -- the first token of a row is the time, each later one is one higher
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $3::smallint and t.id = any (array(select id from taken))
  returning t.*
)
select t.lock_token, date_part('epoch', t.locked_until) * 1000,
  coalesce(pg_column_size(payload) + pg_column_size(headers), 0), (t.available_at at time zone 'utc')::text, t.id,
  t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts, t.max_attempts, t.created_at,
  (select count(*)::int from heads) as found
from leased as t
