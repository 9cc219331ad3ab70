-- Returns in how many milliseconds the next row will be due. Sent before a worker waits.
-- Parameters: $1 bucket, $2 groups (array)
/* leasehold:next due webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
with groups as materialized (select unnest((select $2::uuid[])) as name)
select extract(epoch from nullif(least(  -- one search for each index; infinity is never due
  (select min(first.next_attempt_at) from groups cross join lateral (
    select next_attempt_at from leasehold.webhook_outbox
    where bucket = $1::smallint and endpoint_id = groups.name and (delivery_status = 'pending') and ordering_key is null
      and expiries < 2 and next_attempt_at > now()
    order by next_attempt_at limit 1) as first),
  (select min(first.next_attempt_at) from groups cross join lateral (
    select next_attempt_at from leasehold.webhook_outbox
    where bucket = $1::smallint and endpoint_id = groups.name and (delivery_status = 'pending') and expiries >= 2
      and next_attempt_at > now()
    order by next_attempt_at limit 1) as first)
), 'infinity') - now())::float8 * 1000 as due_in_ms
