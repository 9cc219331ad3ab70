-- Takes back all leases of a worker that is known to be dead, also those that have not expired.
-- Parameters: $1 ids (array), $2 owner of the leases, $3 ids to leave out (array), $4 row limit, $5 error text or null,
--   $6 delays in ms (array)
/* leasehold:reap owned by sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): (select $n), any (array(select …))
with taken_back as materialized (
  select id, locked_by as held_owner, lock_token::text as held_token,
    locked_until as held_until, false as exhausted
  from leasehold.sync_jobs
  where (completed_at is null and failed_at is null and locked_by is not null) and locked_by = $2::text
    and ($1::bigint[] is null or (id) in (select * from unnest($1::bigint[])))
    and id <> all ((select $3::bigint[])::bigint[])
  limit (select $4::int) for update skip locked
),
reaped as (
  update leasehold.sync_jobs as t
  set locked_by = null, locked_until = null, attempts = attempts + 1, expiries = expiries + 1,
    error_message = coalesce($5::text,
      'the lease expired: its worker died, lost the database connection, or took longer than maxLeases allows'),
    next_check_at = now()
      + (case when expiries = 0 then 0  -- at once after the first expiry, then after the delay of this attempt
        else coalesce(($6::float8[])[least(attempts, cardinality($6::float8[]) - 1) + 1], 0) end)
        * interval '1 millisecond'
  where t.id = any (array(select id from taken_back))
)
select id::text as id, held_owner as owner, held_token as token, exhausted,
  greatest(0, extract(epoch from now() - held_until)::float8 * 1000) as stale_ms
from taken_back
