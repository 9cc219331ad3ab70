-- $1 limit, $2 steps, $3 suspects, $4 bytes, $5 excluded1, $6 bucket, $7 keyCursor, $8 owner, $9 leaseMs
/* leasehold:claim by key outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with recursive
queued as not materialized (         -- the unfinished rows of ordering keys
  select id, ordering_key, expiries >= 2 as suspect, available_at as row_due_at,
    coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
    ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)
      and id <> all ((select $5::bigint[])::bigint[]) and (not expiries >= 2 or $3::int > 0)) is true as claimable,
    (select f.id from leasehold.outbox as f
      where f.bucket = $6::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id limit 1) is null as key_is_free
  from leasehold.outbox as t
  where bucket = $6::smallint and ordering_key is not null and (status = 'PENDING' or parked)
),
walk as (
  select head.*, 1 as step, head.ready::int as found
  from (                            -- the first key from the cursor on
    select id, ordering_key, suspect, row_due_at, bytes, claimable and key_is_free as ready
    from queued where ordering_key >= $7::text order by ordering_key, id limit 1
  ) as head
  where $2::int > 0                -- 0: only the keys that were settled go on
    and $1::int > 0
  union all
  select head.*, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (    -- the next key
    select id, ordering_key, suspect, row_due_at, bytes, claimable and key_is_free as ready
    from queued where queued.ordering_key > walk.ordering_key order by ordering_key, id limit 1
  ) as head
  where walk.step < $2::int and walk.found < $1::int
),
heads as (
  select * from walk where ready
),
chosen as materialized (
  select *
  from (
    select *, row_number() over (order by step, id) as nth,
      count(*) filter (where suspect) over (order by step, id) as suspects, coalesce(sum(bytes) over (order by step, id rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from heads
  ) as ranked
  where nth <= $1::int and (not suspect or suspects <= $3::int)
    and (bytes_before = 0 or bytes_before + bytes <= $4::float8)
),
taken as materialized (
  select id, expiries >= 2 as suspect
  from leasehold.outbox as t
  where t.bucket = $6::smallint and t.id = any (array(select id from chosen))
    and ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)) is true
  order by id
  for update skip locked
),
claimed as (
  update leasehold.outbox as t
  set locked_until = now() + $9::float8 * interval '1 millisecond', claimed_by = $8::text,
    lock_token = coalesce(t.lock_token, 0) + 1, status = 'CLAIMED', claimed_at = now()
  where t.bucket = $6::smallint and t.id = any (array(select id from taken))
  returning t.lock_token, t.id, t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts,
    t.max_attempts, t.created_at
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $9::float8 * interval '1 millisecond')::float8 * 1000,
  'order', (select json_agg(id::text) from taken),
  'cursor', (select ordering_key::text             -- at most one row: the walk ends at it
    from walk where step >= $2::int or found >= $1::int),
  'more', (select count(*) from heads) > (select count(*) from chosen),
  'dueInMs', (select extract(epoch from min(row_due_at) - now())::float8 * 1000
     from walk where row_due_at > now() and isfinite(row_due_at)),
  'bytes', (select sum(bytes) from chosen where (id in (select id from taken)) is true),
  'suspect', (select id::text from taken where suspect)
)) as facts full join claimed on false
