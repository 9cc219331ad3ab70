-- $1 steps, $2 suspects, $3 bytes, $4 id1, $5 tokens, $6 owner, $7 bucket, $8 limit, $9 others, $10 excluded1, $11 keyCursor, $12 leaseMs
/* leasehold:settle and claim by key outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with recursive
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
  set claimed_by = null, locked_until = null, status = 'PUBLISHED', published_at = now(), claimed_at = null
  where t.bucket = $7::smallint and t.id = any (array(select id from ours))
  returning t.id, t.ordering_key
),
room as materialized (              -- a row that was not settled takes up the room that it was to make
  select greatest(0, $8::int - (select count(*) from held) + (select count(*) from settled)) as rows
),
queued as not materialized (         -- the unfinished rows of ordering keys
  select id, ordering_key, expiries >= 2 as suspect, available_at as row_due_at,
    coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
    ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)
      and id <> all ((select $10::bigint[])::bigint[]) and (not expiries >= 2 or $2::int > 0)) is true as claimable,
    (select f.id from leasehold.outbox as f
      where f.bucket = $7::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id limit 1) is null as key_is_free
  from leasehold.outbox as t
  where bucket = $7::smallint and ordering_key is not null and (status = 'PENDING' or parked)
),
continued as materialized (
  select head.*
  from settled cross join lateral (    -- the next row of each key that was settled
    -- its key is free: its only row in flight was the settled one
    select id, ordering_key, suspect, row_due_at, bytes, claimable as ready
    from queued where queued.ordering_key = settled.ordering_key and queued.id <> settled.id order by id limit 1
  ) as head
),
others as materialized (            -- the room for other keys, and a share for them where none is left
  select least((select rows from room), greatest((select rows from room) - (select count(*) from continued where ready), $9::int)) as rows
),
walk as (
  select head.*, 1 as step, head.ready::int as found
  from (                            -- the first key from the cursor on
    select id, ordering_key, suspect, row_due_at, bytes, claimable and key_is_free as ready
    from queued where ordering_key >= $11::text order by ordering_key, id limit 1
  ) as head
  where $1::int > 0                -- 0: only the keys that were settled go on
    and (select rows from others) > 0
  union all
  select head.*, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (    -- the next key
    select id, ordering_key, suspect, row_due_at, bytes, claimable and key_is_free as ready
    from queued where queued.ordering_key > walk.ordering_key order by ordering_key, id limit 1
  ) as head
  where walk.step < $1::int and walk.found < (select rows from others)
),
heads as (
  select * from walk where ready
  union all select *, 2147483647 as step, 0 as found from continued where ready
),
chosen as materialized (
  select *
  from (
    select *, row_number() over (order by step, id) as nth,
      count(*) filter (where suspect) over (order by step, id) as suspects, coalesce(sum(bytes) over (order by step, id rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from heads
  ) as ranked
  where nth <= (select rows from room) and (not suspect or suspects <= $2::int)
    and (bytes_before = 0 or bytes_before + bytes <= $3::float8)
),
taken as materialized (
  select id, expiries >= 2 as suspect
  from leasehold.outbox as t
  where t.bucket = $7::smallint and t.id = any (array(select id from chosen))
    and ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)) is true
  order by id
  for update skip locked
),
claimed as (
  update leasehold.outbox as t
  set locked_until = now() + $12::float8 * interval '1 millisecond', claimed_by = $6::text,
    lock_token = coalesce(t.lock_token, 0) + 1, status = 'CLAIMED', claimed_at = now()
  where t.bucket = $7::smallint and t.id = any (array(select id from taken))
  returning t.lock_token, t.id, t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts,
    t.max_attempts, t.created_at
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $12::float8 * interval '1 millisecond')::float8 * 1000,
  'order', (select json_agg(id::text) from taken),
  'cursor', (select ordering_key::text             -- at most one row: the walk ends at it
    from walk where step >= $1::int or found >= (select rows from others)),
  'more', (select count(*) from heads) > (select count(*) from chosen) or (select rows from room) = 0,
  'dueInMs', (select extract(epoch from min(row_due_at) - now())::float8 * 1000
     from walk where row_due_at > now() and isfinite(row_due_at)),
  'bytes', (select sum(bytes) from chosen where (id in (select id from taken)) is true),
  'suspect', (select id::text from taken where suspect),
  'settled', case when (select count(*) from settled) < (select count(*) from held)
    then (select coalesce(json_agg(id::text), '[]') from settled) end
)) as facts full join claimed on false
