-- Returns in how many milliseconds the next row will be due. Sent before a worker waits.
-- Parameters: $1 bucket
/* leasehold:next due outbox */
select extract(epoch from nullif(least(  -- one search for each index; infinity is never due
  (select available_at from leasehold.outbox
    where bucket = $1::smallint and (status = 'PENDING') and ordering_key is null and expiries < 2
      and available_at > now()
    order by available_at limit 1),
  (select available_at from leasehold.outbox
    where bucket = $1::smallint and (status = 'PENDING') and expiries >= 2 and available_at > now()
    order by available_at limit 1),
  (select available_at from leasehold.outbox
    where bucket = $1::smallint and (status = 'PENDING') and ordering_key is not null and available_at > now()
    order by available_at limit 1)
), 'infinity') - now())::float8 * 1000 as due_in_ms
