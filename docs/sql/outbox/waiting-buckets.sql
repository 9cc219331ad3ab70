-- 
/* leasehold:waiting buckets outbox */
with recursive walk1 as (
  (select bucket as bucket, available_at as due_at
    from leasehold.outbox
    where ordering_key is null and (status = 'PENDING') and expiries < 2
    order by bucket, available_at, id limit 1)
  union all
  select next.*
  from walk1 cross join lateral (
    select bucket as bucket, available_at as due_at
    from leasehold.outbox
    where ordering_key is null and (status = 'PENDING') and expiries < 2 and bucket > walk1.bucket
    order by bucket, available_at, id limit 1
  ) as next
),
walk2 as (
  (select bucket as bucket, available_at as due_at
    from leasehold.outbox
    where ordering_key is null and (status = 'PENDING') and expiries >= 2
    order by bucket, available_at, id limit 1)
  union all
  select next.*
  from walk2 cross join lateral (
    select bucket as bucket, available_at as due_at
    from leasehold.outbox
    where ordering_key is null and (status = 'PENDING') and expiries >= 2 and bucket > walk2.bucket
    order by bucket, available_at, id limit 1
  ) as next
),
walk3 as (
  (select bucket as bucket, available_at as due_at
    from leasehold.outbox
    where ordering_key is not null and (status = 'PENDING')
    order by bucket, available_at, id limit 1)
  union all
  select next.*
  from walk3 cross join lateral (
    select bucket as bucket, available_at as due_at
    from leasehold.outbox
    where ordering_key is not null and (status = 'PENDING') and bucket > walk3.bucket
    order by bucket, available_at, id limit 1
  ) as next
)
select bucket, extract(epoch from min(due_at) - now())::float8 * 1000 as due_in_ms
from (select * from walk1 union all select * from walk2 union all select * from walk3) as walked
group by bucket
order by bucket
