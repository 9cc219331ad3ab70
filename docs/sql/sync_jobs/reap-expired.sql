-- Takes back leases that have expired as a retry: the table declares no maximum of attempts.
-- Parameters: $1 ids (array), $2 grace period in ms, $3 owners that are alive (array), $4 ids to leave out (array),
--   $5 row limit, $6 error text or null, $7 delays in ms (array)
/* leasehold:reap expired sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): (select $n), any (array(select …))
with taken_back as materialized (
  select id, locked_by as held_owner, lock_token::text as held_token,
    locked_until as held_until, false as exhausted
  from leasehold.sync_jobs
  where (completed_at is null and failed_at is null and locked_by is not null) and locked_until <= now()
    and (locked_until > now() - (select $2::float8)
      * interval '1 millisecond'  -- for this time it is left to a living owner
      and locked_by = any ((select $3::text[])::text[])) is not true
    and ($1::bigint[] is null or (id) in (select * from unnest($1::bigint[])))
    and id <> all ((select $4::bigint[])::bigint[])
  limit (select $5::int) for update skip locked
),
reaped as (
  update leasehold.sync_jobs as t
  set locked_by = null, locked_until = null, attempts = attempts + 1,
    expiries = expiries + case  -- not counted if the owner is alive: then no process has died
      when locked_by = any ($3::text[]) then 0 else 1 end,
    error_message = coalesce($6::text,
      'the lease expired: its worker died, lost the database connection, or took longer than maxLeases allows'),
    next_check_at = now()
      + (case when expiries = 0 then 0  -- at once after the first expiry, then after the delay of this attempt
        else coalesce(($7::float8[])[least(attempts, cardinality($7::float8[]) - 1) + 1], 0) end)
        * interval '1 millisecond'
  where t.id = any (array(select id from taken_back))
)
select id::text as id, held_owner as owner, held_token as token, exhausted,
  greatest(0, extract(epoch from now() - held_until)::float8 * 1000) as stale_ms
from taken_back
