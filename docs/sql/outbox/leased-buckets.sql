-- 
/* leasehold:leased buckets outbox */
with recursive walk as (
  (select bucket as bucket, now() as due_at
    from leasehold.outbox
    where (status = 'CLAIMED')
    order by bucket limit 1)
  union all
  select next.*
  from walk cross join lateral (
    select bucket as bucket, now() as due_at
    from leasehold.outbox
    where (status = 'CLAIMED') and bucket > walk.bucket
    order by bucket limit 1
  ) as next
)
select bucket from walk
