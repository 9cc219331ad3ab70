-- Returns the buckets in which rows are leased. Sent before a reap by a worker that serves all buckets.
-- No parameters.
/* leasehold:leased buckets outbox */
with recursive leased as (
  (select bucket from leasehold.outbox
    where (status = 'CLAIMED')
    order by bucket limit 1)
  union all
  select next.* from leased cross join lateral (  -- one index probe finds the first row of the next bucket
    select bucket from leasehold.outbox
    where (status = 'CLAIMED') and bucket > leased.bucket
    order by bucket limit 1) as next
)
select bucket from leased
