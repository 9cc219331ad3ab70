-- $1 limit, $2 suspects, $3 alone, $4 bytes, $5 bucket, $6 cursor1, $7 cursor2, $8 excluded1, $9 owner, $10 leaseMs
/* leasehold:claim in order outbox */
with
next as materialized (
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes, false as suspect, 0 as load
  from leasehold.outbox
  where bucket = $5::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries < 2
    and (available_at, id) >= ((select $6::timestamp with time zone), (select $7::bigint))
    and id <> all ((select $8::bigint[])::bigint[])
  order by available_at, id
  limit (select $1::int)
  for update skip locked
),
suspect as materialized (          -- as many as the process has room for
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes, true as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= max_attempts - 1 then 1000000 else 1 end as load
  from leasehold.outbox
  where bucket = $5::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries >= 2
    and id <> all ((select $8::bigint[])::bigint[])
  order by available_at, id
  limit (select $2::int)
  for update skip locked
),
taken as materialized (
  select *
  from (select *, sum(load) over (order by available_at, id rows unbounded preceding) as all_load, coalesce(sum(bytes) over (order by available_at, id rows between unbounded preceding and 1 preceding), 0) as bytes_before from (select * from next union all select * from suspect) as found) as found
  where (load = 0 or all_load <= $2::int or ($3::boolean and all_load = load))
    and (bytes_before = 0 or bytes_before + bytes <= $4::float8)
  order by available_at, id
  limit (select $1::int)
),
claimed as (
  update leasehold.outbox as t
  set locked_until = now() + $10::float8 * interval '1 millisecond', claimed_by = $9::text,
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $5::smallint and t.id = any (array(select id from taken))
  returning t.lock_token, t.id, t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts,
    t.max_attempts, t.created_at
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $10::float8 * interval '1 millisecond') * 1000,
  'order', (select json_agg(id::text) from taken),
  'cursor', (select json_build_array(available_at::text, id::text)
    from taken where not suspect order by available_at desc, id desc limit 1),
  'more', (select count(*) from next) >= $1::int or (select count(*) from taken where not suspect) < (select count(*) from next),
  'dueInMs', least((select extract(epoch from min(available_at) - now()) * 1000
     from leasehold.outbox where bucket = $5::smallint and ordering_key is null and (status = 'PENDING') and expiries < 2
     and available_at > now() and isfinite(available_at)), (select extract(epoch from min(available_at) - now()) * 1000
     from leasehold.outbox where bucket = $5::smallint and ordering_key is null and (status = 'PENDING') and expiries >= 2
     and available_at > now() and isfinite(available_at))),
  'bytes', (select sum(bytes) from taken),
  'suspects', (select json_agg(id::text) from taken where load > 0),
  'alone', (select max(load) >= 1000000 from taken)
)) as facts full join claimed on false
