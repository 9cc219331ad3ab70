-- $1 suspects, $2 alone, $3 bytes, $4 id1, $5 tokens, $6 owner, $7 bucket, $8 limit, $9 oldestFirst, $10 excluded1, $11 freed1, $12 cursor1, $13 cursor2, $14 overlapMs, $15 steps, $16 rows, $17 leaseMs
/* leasehold:settle and claim by key outbox */
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
queued as not materialized (         -- the unfinished rows of ordering keys
  select id, ordering_key, expiries >= 2 as suspect,
    case when expiries < 2 then 0 when expiries > 2 or attempts >= max_attempts - 1 then 1000000 else 1 end as load,
    available_at as row_due_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
    ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)
      and id <> all ((select $10::bigint[])::bigint[]) and (not expiries >= 2 or $1::int > 0)) is true as claimable,
    (select f.id from leasehold.outbox as f
      where f.bucket = $7::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id limit 1) is null as key_is_free
  from leasehold.outbox as t
  where bucket = $7::smallint and ordering_key is not null and (status = 'PENDING' or parked)
),
continued as materialized (
  select head.*
  from settled cross join lateral (    -- the next row of each key that was settled
    -- its key is free: its only row in flight was the settled one
    select id, ordering_key, suspect, load, row_due_at, bytes, claimable as ready
    from queued where queued.ordering_key >= settled.ordering_key and queued.ordering_key <= settled.ordering_key and queued.id <> settled.id order by ordering_key, id limit 1
  ) as head
),
scan as materialized (                -- how many rows to read: several may be of one key, or of a key that waits
  select case when $16::int > 0 then $16::int when room > 0 then least($15::int, 2 * room + 50) else 0 end as rows
  from (select (select rows from room) - (select count(*) from continued where ready) as room) as free
),
arrived as materialized (           -- the next rows that are due, first of their key or not
  select available_at, id, ordering_key
  from leasehold.outbox
  where bucket = $7::smallint and ordering_key is not null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true)
    and (available_at, id) >= ((select least($12::timestamp with time zone, now() - $14::float8 * interval '1 millisecond')), (select case when $12::timestamp with time zone <= now() - $14::float8 * interval '1 millisecond' then $13::bigint else '-9223372036854775808' end))
  order by available_at, id
  limit (select rows from scan)
),
keys as materialized (              -- their keys, where each was met first, and the keys that were freed
  select distinct on (ordering_key) ordering_key, available_at as met1, id as met2, is_freed
  from (
    select available_at, id, ordering_key, false as is_freed from arrived
    union all
    select available_at, id, ordering_key, true from leasehold.outbox where bucket = $7::smallint and id = any (array(select unnest($11::bigint[]))) and ordering_key is not null
  ) as found
  order by ordering_key, is_freed desc, available_at, id
),
heads as materialized (
  select head.*, keys.met1, keys.met2, case when keys.is_freed then 0 else 1 end as step
  from keys cross join lateral (    -- the first row of each key
    select id, ordering_key, suspect, load, row_due_at, bytes, claimable and key_is_free as ready
    from queued where queued.ordering_key >= keys.ordering_key and queued.ordering_key <= keys.ordering_key order by ordering_key, id limit 1
  ) as head
  where head.ready
  union all select continued.*, null, null, 0 as step from continued where ready
),
chosen as materialized (
  select *
  from (
    select *, row_number() over (order by case when $9::boolean then 0 else step end, id) as nth,
      sum(load) over (order by case when $9::boolean then 0 else step end, id rows unbounded preceding) as all_load, coalesce(sum(bytes) over (order by case when $9::boolean then 0 else step end, id rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from heads
  ) as ranked
  where nth <= (select rows from room) and (load = 0 or all_load <= $1::int or ($2::boolean and all_load = load))
    and (bytes_before = 0 or bytes_before + bytes <= $3::float8)
),
passed_over as materialized (       -- for want of room: the next claim starts at the first of them
  select met1, met2 from heads where step = 1 and not suspect and (id in (select id from chosen)) is not true
),
taken as materialized (
  select id, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= max_attempts - 1 then 1000000 else 1 end as load
  from leasehold.outbox as t
  where t.bucket = $7::smallint and t.id = any (array(select id from chosen))
    and ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)) is true
  order by id
  for update skip locked
),
claimed as (
  update leasehold.outbox as t
  set locked_until = now() + $17::float8 * interval '1 millisecond', claimed_by = $6::text,
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
    status = 'CLAIMED', claimed_at = now()
  where t.bucket = $7::smallint and t.id = any (array(select id from taken))
  returning t.lock_token, t.id, t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts,
    t.max_attempts, t.created_at
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $17::float8 * interval '1 millisecond') * 1000,
  'order', (select json_agg(id::text) from taken),
  'cursor', coalesce(
    (select json_build_array(met1::text, met2::text) from passed_over order by met1, met2 limit 1),
    (select json_build_array(available_at::text, id::text) from arrived order by available_at desc, id desc limit 1)),
  'more', exists (select from passed_over) or (select count(*) from arrived) >= (select rows from scan),
  'found', (select count(*) from chosen where step = 1 and (id in (select id from taken)) is true),
  'freed', (select json_agg(id::text) from heads where step = 0 and not suspect and (id in (select id from chosen)) is not true),
  'dueInMs', (select extract(epoch from min(available_at) - now()) * 1000
     from leasehold.outbox where bucket = $7::smallint and ordering_key is not null and (status = 'PENDING') and available_at > now()
     and isfinite(available_at)),
  'bytes', (select sum(bytes) from chosen where (id in (select id from taken)) is true),
  'suspects', (select json_agg(id::text) from taken where load > 0),
  'alone', (select max(load) >= 1000000 from taken),
  'settled', case when (select count(*) from settled) < (select count(*) from held)
    then (select coalesce(json_agg(id::text), '[]') from settled) end,
  'scanned', (select rows from scan) > 0
)) as facts full join claimed on false
