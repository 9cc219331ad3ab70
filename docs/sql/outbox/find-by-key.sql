/* leasehold:find by key outbox */
with recursive walk as (
  select head.*, 1 as step, head.ready::int as found
  from (
    select id, ordering_key, expiries >= 2 as suspect, available_at as head_due_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
      ((status = 'PENDING') and available_at <= now()
        and coalesce(claimed_by is null or locked_until is null, true)
        and ((id) in (select * from unnest($4::bigint[]))) is not true and (not expiries >= 2 or $5::int > 0)) is true as ready
    from leasehold.outbox as t
    where t.bucket = $6::smallint and t.ordering_key >= $3::text and t.ordering_key is not null
      and (status in ('PENDING', 'CLAIMED') or parked)
    order by t.ordering_key, t.id limit 1
  ) as head
  where $2::int > 0
  union all
  select head.*, walk.step + 1, walk.found + head.ready::int
  from walk
  cross join lateral (
    select id, ordering_key, expiries >= 2 as suspect, available_at as head_due_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
      ((status = 'PENDING') and available_at <= now()
        and coalesce(claimed_by is null or locked_until is null, true)
        and ((id) in (select * from unnest($4::bigint[]))) is not true and (not expiries >= 2 or $5::int > 0)) is true as ready
    from leasehold.outbox as t
    where t.bucket = $6::smallint and t.ordering_key > walk.ordering_key and t.ordering_key is not null
      and (status in ('PENDING', 'CLAIMED') or parked)
    order by t.ordering_key, t.id limit 1
  ) as head
  where walk.step < $2::int and walk.found < $1::int
)
select id::text as id, suspect
from walk
where ready and (
    select f.id from leasehold.outbox as f
    where f.bucket = $6::smallint and f.ordering_key = walk.ordering_key and (status = 'CLAIMED')
      and f.id <> walk.id limit 1
  ) is null
