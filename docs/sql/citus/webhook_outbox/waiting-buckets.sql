-- Returns the buckets in which rows wait, and when the first row of each is due. Sent only where there are several
-- buckets.
-- No parameters.
/* leasehold:waiting buckets webhook_outbox */
select buckets.bucket,
  (extract(epoch from nullif(least(
    (select now() from leasehold.webhook_outbox as t
      where t.bucket = buckets.bucket and ordering_key is null and (delivery_status = 'pending') and expiries < 2
      order by t.bucket, endpoint_id, next_attempt_at, id limit 1),
    (select now() from leasehold.webhook_outbox as t
      where t.bucket = buckets.bucket and (delivery_status = 'pending') and expiries >= 2
      order by t.bucket, endpoint_id, next_attempt_at, id limit 1),
    (select now() from leasehold.webhook_outbox as t
      where t.bucket = buckets.bucket and ordering_key is not null and (delivery_status = 'pending')
      order by t.bucket, endpoint_id, ordering_key, id limit 1)), 'infinity')) - extract(epoch from now()))::float8
        * 1000 as due_in_ms
from leasehold.citus_buckets as buckets
order by buckets.bucket
