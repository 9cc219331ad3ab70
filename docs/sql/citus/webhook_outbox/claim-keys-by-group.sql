-- Steps from ordering key to ordering key in each of the given groups, and claims the first unfinished row of each key,
-- if it can be claimed now. Also returns for each group at which key it stopped, unless that was the last one.
-- Parameters: $1 ids to leave out (array), $2 groups (array), $3 row limit of each group (array),
--   $4 key to start at in each group (array), $5 bucket, $6 key limit of each group, $7 byte budget, $8 row limit,
--   $9 owner, $10 lease in ms
/* leasehold:claim keys by group webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), (select $n), any (array(select …))
with recursive groups as materialized (
  select * from unnest((select $2::uuid[]), (select $3::int[]), (select $4::text[])) as groups (name, room, key_cursor)
),
walk as (  -- the first unfinished row of each key, and whether it is ready to be claimed
  select head.*, groups.room, 1 as step, head.ready::int as found
  from groups cross join lateral (  -- the first key from the cursor on
    select o.id, o.endpoint_id, o.ordering_key, next_attempt_at as row_due_at,
      coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes,
      ((delivery_status = 'pending') and next_attempt_at <= now()
        and coalesce(lease_owner is null or lease_until is null, true) and expiries < 2
        and id <> all ((select $1::bigint[])::bigint[])) is true
        and (select f.id from leasehold.webhook_outbox as f
          where f.bucket = $5::smallint and f.endpoint_id = o.endpoint_id and f.ordering_key = o.ordering_key
            and (delivery_status = 'pending' and lease_owner is not null) and f.id <> o.id limit 1) is null as ready
    from leasehold.webhook_outbox as o
    where o.bucket = $5::smallint and o.ordering_key is not null and (delivery_status = 'pending')
      and o.endpoint_id = groups.name and o.ordering_key >= groups.key_cursor
    order by o.endpoint_id, o.ordering_key, o.id limit 1
  ) as head
  union all
  select head.*, walk.room, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (  -- the next key
    select o.id, o.endpoint_id, o.ordering_key, next_attempt_at as row_due_at,
      coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes,
      ((delivery_status = 'pending') and next_attempt_at <= now()
        and coalesce(lease_owner is null or lease_until is null, true) and expiries < 2
        and id <> all ((select $1::bigint[])::bigint[])) is true
        and (select f.id from leasehold.webhook_outbox as f
          where f.bucket = $5::smallint and f.endpoint_id = o.endpoint_id and f.ordering_key = o.ordering_key
            and (delivery_status = 'pending' and lease_owner is not null) and f.id <> o.id limit 1) is null as ready
    from leasehold.webhook_outbox as o
    where o.bucket = $5::smallint and o.ordering_key is not null and (delivery_status = 'pending')
      and o.endpoint_id = walk.endpoint_id and o.ordering_key > walk.ordering_key
    order by o.endpoint_id, o.ordering_key, o.id limit 1
  ) as head
  where walk.step < $6::int and walk.found < walk.room
),
next as materialized (
  select *, sum(bytes) over (order by id rows unbounded preceding) as total from walk where ready
),
taken as materialized (  -- within the byte budget, at least one; rows that are locked or have changed are left out
  select t.id from leasehold.webhook_outbox as t
  where t.bucket = $5::smallint and t.id = any (array(select id from next where total = bytes or total <= $7::float8))
    and ((delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)) is true
  order by t.id limit (select $8::int) for update skip locked
),
leased as (
  update leasehold.webhook_outbox as t
  set lease_until = now() + $10::float8 * interval '1 millisecond', lease_owner = $9::text,
    -- the first token of a row is the time, each later one is one higher
    lease_token = (select coalesce(nullif(t.lease_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
  where t.bucket = $5::smallint and t.id = any (array(select id from taken))
  returning t.*
),
claimed as (
  select t.lease_token, date_part('epoch', t.lease_until) * 1000,
    coalesce(octet_length(body) + pg_column_size(headers), 0),
    (t.next_attempt_at at time zone 'utc')::text, t.id, t.event_id, t.endpoint_id, t.event_type, t.ordering_key, t.body,
    t.headers, t.attempts, t.created_at, (select count(*)::int from next) as found, t.endpoint_id as of_group
  from leased as t
)
select claimed.*, groups.name,
  (select ordering_key::text from walk
    where walk.endpoint_id = groups.name and (step >= $6::int or found >= room) limit 1) as stopped_at,
  (select extract(epoch from min(row_due_at) - now())::float8 * 1000
    from walk where row_due_at > now() and isfinite(row_due_at)) as due_in_ms
from groups left join claimed on claimed.of_group = groups.name
