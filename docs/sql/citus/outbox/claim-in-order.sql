-- $1 limit, $2 bytes, $3 bucket, $4 cursor1, $5 cursor2, $6 excluded1, $7 suspects, $8 owner, $9 leaseMs
/* leasehold:claim in order outbox */
with
next as materialized (
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes, false as suspect
  from leasehold.outbox
  where bucket = $3::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries < 2
    and (available_at, id) >= ((select $4::timestamp with time zone), (select $5::bigint))
    and id <> all ((select $6::bigint[])::bigint[])
  order by available_at, id
  limit (select $1::int)
  for update skip locked
),
suspect as materialized (          -- at most one, and none while the process runs another
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes, true as suspect
  from leasehold.outbox
  where bucket = $3::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries >= 2
    and id <> all ((select $6::bigint[])::bigint[])
  order by available_at, id
  limit (select $7::int)
  for update skip locked
),
taken as materialized (
  select *
  from (select *, coalesce(sum(bytes) over (order by available_at, id rows between unbounded preceding and 1 preceding), 0) as bytes_before from (select * from next union all select * from suspect) as found) as found
  where (bytes_before = 0 or bytes_before + bytes <= $2::float8)
  order by available_at, id
  limit (select $1::int)
),
claimed as (
  update leasehold.outbox as t
  set locked_until = now() + $9::float8 * interval '1 millisecond', claimed_by = $8::text,
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $3::smallint and t.id = any (array(select id from taken))
  returning t.lock_token, t.id, t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts,
    t.max_attempts, t.created_at
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $9::float8 * interval '1 millisecond') * 1000,
  'order', (select json_agg(id::text) from taken),
  'cursor', (select json_build_array(available_at::text, id::text)
    from taken where not suspect order by available_at desc, id desc limit 1),
  'more', (select count(*) from next) >= $1::int or (select count(*) from taken where not suspect) < (select count(*) from next),
  'dueInMs', least((select extract(epoch from min(available_at) - now()) * 1000
     from leasehold.outbox where bucket = $3::smallint and ordering_key is null and (status = 'PENDING') and expiries < 2
     and available_at > now() and isfinite(available_at)), (select extract(epoch from min(available_at) - now()) * 1000
     from leasehold.outbox where bucket = $3::smallint and ordering_key is null and (status = 'PENDING') and expiries >= 2
     and available_at > now() and isfinite(available_at))),
  'bytes', (select sum(bytes) from taken),
  'suspect', (select id::text from taken where suspect)
)) as facts full join claimed on false
