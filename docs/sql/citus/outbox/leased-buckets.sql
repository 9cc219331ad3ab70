-- Returns the buckets in which rows are leased. Sent before a reap by a worker that serves all buckets.
-- No parameters.
/* leasehold:leased buckets outbox */
select buckets.bucket
from leasehold.citus_buckets as buckets
where (select now() from leasehold.outbox as t
      where t.bucket = buckets.bucket and (status = 'CLAIMED')
      order by t.bucket limit 1) is not null
order by buckets.bucket
