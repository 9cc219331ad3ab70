-- Takes back all leases of a worker that is known to be dead, also those that have not expired.
-- Parameters: $1 ids (array), $2 bucket, $3 owner of the leases, $4 ids to leave out (array), $5 row limit,
--   $6 error text or null, $7 delays in ms (array)
/* leasehold:reap owned by outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n), any (array(select …))
with taken_back as materialized (
  select id, claimed_by as held_owner, lock_token::text as held_token,
    locked_until as held_until, coalesce(attempts >= max_attempts - 1, false) as exhausted
  from leasehold.outbox
  where bucket = $2::smallint and (status = 'CLAIMED') and claimed_by = $3::text
    and ($1::bigint[] is null or (id) in (select * from unnest($1::bigint[])))
    and id <> all ((select $4::bigint[])::bigint[])
  limit (select $5::int) for update skip locked
),
reaped as (
  update leasehold.outbox as t
  set claimed_by = null, locked_until = null, attempts = attempts + 1, expiries = expiries + 1,
    last_error = coalesce($6::text,
      'the lease expired: its relay died, lost the database connection, or took longer than maxLeases allows'),
    available_at = case when attempts >= max_attempts - 1 then available_at
      else now()
      + (case when expiries = 0 then 0  -- at once after the first expiry, then after the delay of this attempt
        else coalesce(($7::float8[])[least(attempts, cardinality($7::float8[]) - 1) + 1], 0) end)
        * interval '1 millisecond' end,
    status = case when attempts >= max_attempts - 1 then 'DEAD' else 'PENDING' end, claimed_at = null,
    history = (case when jsonb_array_length(history) >= 20 then history - 0 else coalesce(history, '[]') end
      || jsonb_build_array(jsonb_build_object('outcome', 'expired', 'attempt', attempts + 1, 'token', lock_token::text,
        'claimed_at', claimed_at, 'owner', claimed_by, 'until', locked_until, 'ended_at', now(),
        'error',
          left(coalesce($6::text,
          'the lease expired: its relay died, lost the database connection, or took longer than maxLeases allows'),
          500)))),
    dead_at = case when attempts >= max_attempts - 1 then now() else dead_at end,
    parked = case when attempts >= max_attempts - 1 then false else parked end
  where t.bucket = $2::smallint and t.id = any (array(select id from taken_back))
)
select id::text as id, held_owner as owner, held_token as token, exhausted,
  greatest(0, extract(epoch from now() - held_until)::float8 * 1000) as stale_ms
from taken_back
