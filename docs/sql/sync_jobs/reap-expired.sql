-- $1 id1, $2 excluded1, $3 limit, $4 reason, $5 backoffMs
/* leasehold:reap expired sync_jobs */
with taken_back as materialized (
  select id, locked_by as held_owner, lock_token::text as held_token,
    locked_until as held_until, false as exhausted
  from leasehold.sync_jobs
  where (completed_at is null and failed_at is null and locked_by is not null) and locked_until <= now()
    and ($1::bigint[] is null or (id) in (select * from unnest($1::bigint[])))
    and id <> all ((select $2::bigint[])::bigint[])
  limit (select $3::int)
  for update skip locked
),
reaped as (
  update leasehold.sync_jobs as t
  set locked_by = null, locked_until = null, attempts = coalesce(attempts, 0) + 1,
    expiries = coalesce(expiries, 0) + 1,
    error_message = coalesce($4::text, 'the lease expired: its worker died, lost the database, or took longer than maxLeases'),
    next_check_at = now() + coalesce((case when expiries = 0 then 0 else coalesce(($5::float8[])[least(attempts, cardinality($5::float8[]) - 1) + 1], 0) end), 0) * interval '1 millisecond'
  where t.id = any (array(select id from taken_back))
)
select id::text as id, held_owner as owner, held_token as token, exhausted,
  greatest(0, extract(epoch from now() - held_until)::float8 * 1000) as stale_ms
from taken_back
