-- 
/* leasehold:leased buckets webhook_outbox */
with recursive walk as (
  (select bucket as bucket, now() as due_at
    from leasehold.webhook_outbox
    where (delivery_status = 'pending' and lease_owner is not null)
    order by bucket limit 1)
  union all
  select next.*
  from walk cross join lateral (
    select bucket as bucket, now() as due_at
    from leasehold.webhook_outbox
    where (delivery_status = 'pending' and lease_owner is not null) and bucket > walk.bucket
    order by bucket limit 1
  ) as next
)
select bucket from walk
