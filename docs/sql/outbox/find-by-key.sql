-- $1 limit, $2 steps, $3 keyCursor, $4 excluded1, $5 suspects, $6 bucket
/* leasehold:find by key outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with recursive walk as (
  select head.*, 1 as step, head.ready::int as found
  from (                            -- the first key from the cursor on
    select id, ordering_key, expiries >= 2 as suspect, available_at as head_due_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
      ((status = 'PENDING') and available_at <= now()
        and coalesce(claimed_by is null or locked_until is null, true)
        and id <> all ((select $4::bigint[])::bigint[]) and (not expiries >= 2 or $5::int > 0)
        and (
    select f.id from leasehold.outbox as f
    where f.bucket = $6::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id limit 1
  ) is null) is true as ready
    from leasehold.outbox as t
    where t.bucket = $6::smallint and t.ordering_key >= $3::text and t.ordering_key is not null
      and (status in ('PENDING', 'CLAIMED') or parked)
    order by t.ordering_key, t.id limit 1
  ) as head
  where $2::int > 0                -- 0: only the keys that were settled go on
  union all
  select head.*, walk.step + 1, walk.found + head.ready::int
  from walk
  cross join lateral (              -- the next key
    select id, ordering_key, expiries >= 2 as suspect, available_at as head_due_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
      ((status = 'PENDING') and available_at <= now()
        and coalesce(claimed_by is null or locked_until is null, true)
        and id <> all ((select $4::bigint[])::bigint[]) and (not expiries >= 2 or $5::int > 0)
        and (
    select f.id from leasehold.outbox as f
    where f.bucket = $6::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id limit 1
  ) is null) is true as ready
    from leasehold.outbox as t
    where t.bucket = $6::smallint and t.ordering_key > walk.ordering_key and t.ordering_key is not null
      and (status in ('PENDING', 'CLAIMED') or parked)
    order by t.ordering_key, t.id limit 1
  ) as head
  where walk.step < $2::int and walk.found < $1::int
)
select id::text as id, suspect
from walk
where ready
