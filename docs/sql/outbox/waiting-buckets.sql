-- Returns the buckets in which rows wait, and when the first row of each is due. Sent only where there are several
-- buckets.
-- No parameters.
/* leasehold:waiting buckets outbox */
with recursive without_key as (
  (select bucket, available_at as due_at from leasehold.outbox
    where ordering_key is null and (status = 'PENDING') and expiries < 2
    order by bucket, available_at, id limit 1)
  union all
  select next.* from without_key cross join lateral (  -- one index probe finds the first row of the next bucket
    select bucket, available_at as due_at from leasehold.outbox
    where ordering_key is null and (status = 'PENDING') and expiries < 2 and bucket > without_key.bucket
    order by bucket, available_at, id limit 1) as next
),
suspects as (
  (select bucket, available_at as due_at from leasehold.outbox
    where (status = 'PENDING') and expiries >= 2
    order by bucket, available_at, id limit 1)
  union all
  select next.* from suspects cross join lateral (  -- one index probe finds the first row of the next bucket
    select bucket, available_at as due_at from leasehold.outbox
    where (status = 'PENDING') and expiries >= 2 and bucket > suspects.bucket
    order by bucket, available_at, id limit 1) as next
),
with_key as (
  (select bucket, available_at as due_at from leasehold.outbox
    where ordering_key is not null and (status = 'PENDING')
    order by bucket, available_at, id limit 1)
  union all
  select next.* from with_key cross join lateral (  -- one index probe finds the first row of the next bucket
    select bucket, available_at as due_at from leasehold.outbox
    where ordering_key is not null and (status = 'PENDING') and bucket > with_key.bucket
    order by bucket, available_at, id limit 1) as next
)
select bucket,
  (extract(epoch from nullif(min(due_at), 'infinity')) - extract(epoch from now()))::float8 * 1000 as due_in_ms
from (select * from without_key union all select * from suspects union all select * from with_key) as found
group by bucket
order by bucket
