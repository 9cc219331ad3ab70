-- $1 excluded1, $2 suspects, $3 bucket, $4 limit, $5 steps, $6 keyCursor
/* leasehold:find by key outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with recursive queued as not materialized (         -- the unfinished rows of ordering keys
  select id, ordering_key, expiries >= 2 as suspect, available_at as row_due_at,
    coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
    ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)
      and id <> all ((select $1::bigint[])::bigint[]) and (not expiries >= 2 or $2::int > 0)) is true as claimable,
    (select f.id from leasehold.outbox as f
      where f.bucket = $3::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id limit 1) is null as key_is_free
  from leasehold.outbox as t
  where bucket = $3::smallint and ordering_key is not null and (status = 'PENDING' or parked)
),
walk as (
  select head.*, 1 as step, head.ready::int as found
  from (                            -- the first key from the cursor on
    select id, ordering_key, suspect, row_due_at, bytes, claimable and key_is_free as ready
    from queued where ordering_key >= $6::text order by ordering_key, id limit 1
  ) as head
  where $5::int > 0                -- 0: only the keys that were settled go on
    and $4::int > 0
  union all
  select head.*, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (    -- the next key
    select id, ordering_key, suspect, row_due_at, bytes, claimable and key_is_free as ready
    from queued where queued.ordering_key > walk.ordering_key order by ordering_key, id limit 1
  ) as head
  where walk.step < $5::int and walk.found < $4::int
)
select id::text as id, suspect
from walk
where ready
