-- Returns the buckets in which rows wait, and when the first row of each is due. Sent only where there are several
-- buckets.
-- No parameters.
/* leasehold:waiting buckets outbox */
select buckets.bucket,
  (extract(epoch from nullif(least(
    (select available_at from leasehold.outbox as t
      where t.bucket = buckets.bucket and ordering_key is null and (status = 'PENDING') and expiries < 2
      order by t.bucket, available_at, id limit 1),
    (select available_at from leasehold.outbox as t
      where t.bucket = buckets.bucket and (status = 'PENDING') and expiries >= 2
      order by t.bucket, available_at, id limit 1),
    (select available_at from leasehold.outbox as t
      where t.bucket = buckets.bucket and ordering_key is not null and (status = 'PENDING')
      order by t.bucket, available_at, id limit 1)), 'infinity')) - extract(epoch from now()))::float8
        * 1000 as due_in_ms
from leasehold.citus_buckets as buckets
order by buckets.bucket
