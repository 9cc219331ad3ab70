-- $1 cursor1, $2 cursor2, $3 bucket, $4 rows, $5 excluded1, $6 bytes, $7 limit, $8 owner, $9 leaseMs
/* leasehold:claim arrived keys outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), (select $n), any (array(select …))
with arrived as materialized (           -- the next rows that are due, first of their key or not
  select available_at, id, ordering_key
  from leasehold.outbox
  where bucket = $3::smallint and ordering_key is not null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true)
    and (available_at, id) >= ((select $1::timestamp with time zone), (select $2::bigint))
  order by available_at, id
  limit (select $4::int)
),
heads as materialized (
  select head.*
  from (select distinct ordering_key from arrived) as wanted
  cross join lateral (                -- the first unfinished row of the key
    select o.id, o.ordering_key, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
      ((status = 'PENDING') and available_at <= now() and coalesce(claimed_by is null or locked_until is null, true)
        and expiries < 2 and id <> all ((select $5::bigint[])::bigint[])) is true as claimable
    from leasehold.outbox as o
    where o.bucket = $3::smallint and (status = 'PENDING' or parked) and o.ordering_key >= wanted.ordering_key
      and o.ordering_key <= wanted.ordering_key
    order by o.ordering_key, o.id limit 1
  ) as head
  where head.claimable and (select f.id from leasehold.outbox as f
      where f.bucket = $3::smallint and f.ordering_key = head.ordering_key and (status = 'CLAIMED') and f.id <> head.id
      limit 1) is null
),
fitting as materialized (           -- as many as fit into the byte budget, but at least one
  select *
  from (select *, sum(bytes) over (order by id rows unbounded preceding) as total from heads) as sized
  where total = bytes or total <= $6::float8
),
taken as materialized (
  select t.id
  from leasehold.outbox as t
  where t.bucket = $3::smallint and t.id = any (array(select id from fitting))
    and ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)) is true
  order by t.id
  limit (select $7::int)
  for update skip locked
),
leased as (
  update leasehold.outbox as t
  set locked_until = now() + $9::float8 * interval '1 millisecond', claimed_by = $8::text,
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $3::smallint and t.id = any (array(select id from taken))
  returning t.*
),
claimed (c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, found) as (
  select t.lock_token, date_part('epoch', t.locked_until) * 1000,
    coalesce(pg_column_size(payload) + pg_column_size(headers), 0), (t.available_at at time zone 'utc')::text, t.id,
    t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts, t.max_attempts, t.created_at,
    (select count(*)::int from heads)
  from leased as t
)
select claimed.*, scan.*
from (
  select (select count(*)::int from arrived) as read,
    (select (available_at at time zone 'utc')::text || '|' || id::text from arrived order by available_at desc, id desc
      limit 1) as read_to,
    (select (available_at at time zone 'utc')::text || '|' || id::text from arrived
      where ordering_key in (select ordering_key from heads where id > (select id from taken order by id desc limit 1))
      order by available_at, id limit 1) as no_room_from
) as scan left join claimed on true
