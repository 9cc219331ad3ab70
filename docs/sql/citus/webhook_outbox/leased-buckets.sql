-- Returns the buckets in which rows are leased. Sent before a reap by a worker that serves all buckets.
-- No parameters.
/* leasehold:leased buckets webhook_outbox */
select buckets.bucket
from leasehold.citus_buckets as buckets
where (select now() from leasehold.webhook_outbox as t
      where t.bucket = buckets.bucket and (delivery_status = 'pending' and lease_owner is not null)
      order by t.bucket limit 1) is not null
order by buckets.bucket
