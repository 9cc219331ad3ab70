-- Returns in how many milliseconds the next row will be due. Sent before a worker waits.
-- Parameters: $1 groups (array)
/* leasehold:next due sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
with groups as materialized (select unnest((select $1::text[])) as name)
select extract(epoch from nullif(least(  -- one search for each index; infinity is never due
  (select min(next_check_at) from groups, leasehold.sync_jobs
    where definition = groups.name and (completed_at is null and failed_at is null) and expiries >= 2
      and next_check_at > now())
), 'infinity') - now())::float8 * 1000 as due_in_ms
