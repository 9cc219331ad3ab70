-- Claims the first unfinished row of each ordering key to which the next due rows belong, if it can be claimed now.
-- Also returns how many rows were read, up to where, and the first one whose key there was no room for.
-- Parameters: $1 and $2 cursor, $3 bucket, $4 rows to read, $5 ids to leave out (array), $6 byte budget, $7 row limit,
--   $8 owner, $9 lease in ms
/* leasehold:claim arrived keys outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), (select $n), any (array(select …))
with arrived as materialized (  -- the next rows that are due, whether or not they are the first of their key
  select available_at, id, ordering_key from leasehold.outbox
  where bucket = $3::smallint and ordering_key is not null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true)
    and (available_at, id) >= ((select $1::timestamp with time zone), (select $2::bigint))
  order by available_at, id limit (select $4::int)
),
heads as materialized (  -- the first unfinished row of each key, if it can be claimed and none is leased
  select head.*, sum(head.bytes) over (order by head.id rows unbounded preceding) as total  -- for the byte budget
  from (select distinct ordering_key from arrived) as wanted cross join lateral (
    select o.id, o.ordering_key, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
      ((status = 'PENDING') and available_at <= now() and coalesce(claimed_by is null or locked_until is null, true)
        and expiries < 2 and id <> all ((select $5::bigint[])::bigint[])) is true as claimable
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
  where t.bucket = $3::smallint and t.id = any (array(select id from heads where total = bytes or total <= $6::float8))
    and ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)) is true
  order by t.id limit (select $7::int) for update skip locked
),
claimed as (
  update leasehold.outbox as t
  set locked_until = now() + $9::float8 * interval '1 millisecond', claimed_by = $8::text,
    -- the first token of a row is the time, each later one is one higher
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $3::smallint and t.id = any (array(select id from taken))
  returning t.lock_token, date_part('epoch', t.locked_until) * 1000,
    coalesce(pg_column_size(payload) + pg_column_size(headers), 0), (t.available_at at time zone 'utc')::text, t.id,
    t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts, t.max_attempts, t.created_at
)
select claimed.*, (select count(*)::int from heads) as found, (select count(*)::int from arrived) as read,
  (select (available_at at time zone 'utc')::text || '|' || id::text
    from arrived order by available_at desc, id desc limit 1) as read_to,
  (select (available_at at time zone 'utc')::text || '|' || id::text
    from arrived  -- the first row read whose key has a row to claim, but there was no room for it
    where (ordering_key in (select ordering_key from heads
      where id > (select id from taken order by id desc limit 1))) is true
    order by available_at, id limit 1) as no_room_from
from (select 1) as always left join claimed on true
