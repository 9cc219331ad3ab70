-- $1 suspects, $2 alone, $3 bytes, $4 id1, $5 tokens, $6 owner, $7 bucket, $8 limit, $9 cursor1, $10 cursor2, $11 excluded1, $12 leaseMs
/* leasehold:settle and claim in order outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with
held as materialized (
  select * from unnest($4::bigint[], $5::bigint[]) as held (id, held_token)
),
ours as materialized (              -- a row that another session has locked is skipped, and reported as busy
  select t.id
  from leasehold.outbox as t
  where t.bucket = $7::smallint and t.id = any (array(select id from held)) and (t.claimed_by = $6::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  for no key update skip locked
),
settled as (
  update leasehold.outbox as t
  set claimed_by = null, locked_until = null, status = 'PUBLISHED', published_at = now(),
    published_by = claimed_by
  where t.bucket = $7::smallint and t.id = any (array(select id from ours))
  returning t.id, t.ordering_key
),
room as materialized (              -- a row that was not settled takes up the room that it was to make
  select greatest(0, $8::int - (select count(*) from held) + (select count(*) from settled)) as rows
),
next as materialized (
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes, false as suspect, 0 as load
  from leasehold.outbox
  where bucket = $7::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries < 2
    and (available_at, id) >= ((select $9::timestamp with time zone), (select $10::bigint))
    and id <> all ((select $11::bigint[])::bigint[])
  order by available_at, id
  limit (select rows from room)
  for update skip locked
),
suspect as materialized (          -- as many as the process has room for
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes, true as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= max_attempts - 1 then 1000000 else 1 end as load
  from leasehold.outbox
  where bucket = $7::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries >= 2
    and id <> all ((select $11::bigint[])::bigint[])
  order by available_at, id
  limit (select $1::int)
  for update skip locked
),
taken as materialized (
  select *
  from (select *, sum(load) over (order by available_at, id rows unbounded preceding) as all_load, coalesce(sum(bytes) over (order by available_at, id rows between unbounded preceding and 1 preceding), 0) as bytes_before from (select * from next union all select * from suspect) as found) as found
  where (load = 0 or all_load <= $1::int or ($2::boolean and all_load = load))
    and (bytes_before = 0 or bytes_before + bytes <= $3::float8)
  order by available_at, id
  limit (select rows from room)
),
claimed as (
  update leasehold.outbox as t
  set locked_until = now() + $12::float8 * interval '1 millisecond', claimed_by = $6::text,
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $7::smallint and t.id = any (array(select id from taken))
  returning t.lock_token, t.id, t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts,
    t.max_attempts, t.created_at
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $12::float8 * interval '1 millisecond') * 1000,
  'order', (select json_agg(id::text) from taken),
  'cursor', (select json_build_array(available_at::text, id::text)
    from taken where not suspect order by available_at desc, id desc limit 1),
  'more', (select count(*) from next) >= (select rows from room) or (select count(*) from taken where not suspect) < (select count(*) from next),
  'dueInMs', least((select extract(epoch from min(available_at) - now()) * 1000
     from leasehold.outbox where bucket = $7::smallint and ordering_key is null and (status = 'PENDING') and expiries < 2
     and available_at > now() and isfinite(available_at)), (select extract(epoch from min(available_at) - now()) * 1000
     from leasehold.outbox where bucket = $7::smallint and ordering_key is null and (status = 'PENDING') and expiries >= 2
     and available_at > now() and isfinite(available_at))),
  'bytes', (select sum(bytes) from taken),
  'suspects', (select json_agg(id::text) from taken where load > 0),
  'alone', (select max(load) >= 1000000 from taken),
  'settled', case when (select count(*) from settled) < (select count(*) from held)
    then (select coalesce(json_agg(id::text), '[]') from settled) end
)) as facts full join claimed on false
