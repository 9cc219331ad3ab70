-- Claims the next rows that are due and have no ordering key of each of the given groups, as many as the group has room
-- for. Rows with two or more expiries are left to `claim suspects`.
-- Parameters: $1 bucket, $2 ids to leave out (array), $3 groups (array), $4 row limit of each group (array),
--   $5 row limit, $6 byte budget, $7 owner, $8 lease in ms
/* leasehold:claim by group webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n), any (array(select …))
with next as materialized (  -- of each group the next rows that are due, as many as it has room for; all are locked
  select row.*
  from unnest((select $3::uuid[]), (select $4::int[])) as groups (name, room) cross join lateral (
    select id, next_attempt_at, coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes
    from leasehold.webhook_outbox
    where bucket = $1::smallint and endpoint_id = groups.name and ordering_key is null and (delivery_status = 'pending')
      and next_attempt_at <= now() and coalesce(lease_owner is null or lease_until is null, true) and expiries < 2
      and id <> all ((select $2::bigint[])::bigint[])
    order by next_attempt_at, id limit least(groups.room, $5::int) for update skip locked
  ) as row
),
fitting as materialized (  -- as many as fit into the byte budget, but at least one
  select *
  from (select *, sum(bytes) over (order by next_attempt_at, id rows unbounded preceding) as total from next) as sized
  where total = bytes or total <= $6::float8
),
chosen as materialized (
  select * from fitting order by next_attempt_at, id limit (select $5::int)
)
, leased as (
  update leasehold.webhook_outbox as t
  set lease_until = now() + $8::float8 * interval '1 millisecond', lease_owner = $7::text,
    -- the first token of a row is the time, each later one is one higher
    lease_token = (select coalesce(nullif(t.lease_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
  where t.bucket = $1::smallint and t.id = any (array(select id from chosen))
  returning t.*
)
select t.lease_token, date_part('epoch', t.lease_until) * 1000,
  coalesce(octet_length(body) + pg_column_size(headers), 0),
  (t.next_attempt_at at time zone 'utc')::text, t.id, t.event_id, t.endpoint_id, t.event_type, t.ordering_key, t.body,
  t.headers, t.attempts, t.created_at, (select count(*)::int from next) as found
from leased as t
