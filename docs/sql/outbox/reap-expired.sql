-- Takes back leases that have expired: the rows can be claimed again, or are dead if their attempts are used up.
-- Parameters: $1 ids (array), $2 bucket, $3 grace period in ms, $4 owners that are alive (array),
--   $5 ids to leave out (array), $6 row limit, $7 error text or null, $8 delays in ms (array)
/* leasehold:reap expired outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n), any (array(select …))
with taken_back as materialized (
  select id, claimed_by as held_owner, lock_token::text as held_token,
    locked_until as held_until, coalesce(attempts >= max_attempts - 1, false) as exhausted
  from leasehold.outbox
  where bucket = $2::smallint and (status = 'CLAIMED') and locked_until <= now()
    and (locked_until > now() - (select $3::float8)
      * interval '1 millisecond'  -- for this time it is left to a living owner
      and claimed_by = any ((select $4::text[])::text[])) is not true
    and ($1::bigint[] is null or (id) in (select * from unnest($1::bigint[])))
    and id <> all ((select $5::bigint[])::bigint[])
  limit (select $6::int) for update skip locked
),
reaped as (
  update leasehold.outbox as t
  set claimed_by = null, locked_until = null, attempts = attempts + 1,
    expiries = expiries + case  -- not counted if the owner is alive: then no process has died
      when claimed_by = any ($4::text[]) then 0 else 1 end,
    last_error = coalesce($7::text,
      'the lease expired: its relay died, lost the database connection, or took longer than maxLeases allows'),
    available_at = case when attempts >= max_attempts - 1 then available_at
      else now()
      + (case when expiries = 0 then 0  -- at once after the first expiry, then after the delay of this attempt
        else coalesce(($8::float8[])[least(attempts, cardinality($8::float8[]) - 1) + 1], 0) end)
        * interval '1 millisecond' end,
    status = case when attempts >= max_attempts - 1 then 'DEAD' else 'PENDING' end, claimed_at = null,
    history = (case when jsonb_array_length(history) >= 20 then history - 0 else coalesce(history, '[]') end
      || jsonb_build_array(jsonb_build_object('outcome', 'expired', 'attempt', attempts + 1, 'token', lock_token::text,
        'claimed_at', claimed_at, 'owner', claimed_by, 'until', locked_until, 'ended_at', now(),
        'error',
          left(coalesce($7::text,
          'the lease expired: its relay died, lost the database connection, or took longer than maxLeases allows'),
          500)))),
    dead_at = case when attempts >= max_attempts - 1 then now() else dead_at end,
    parked = case when attempts >= max_attempts - 1 then false else parked end
  where t.bucket = $2::smallint and t.id = any (array(select id from taken_back))
)
select id::text as id, held_owner as owner, held_token as token, exhausted,
  greatest(0, extract(epoch from now() - held_until)::float8 * 1000) as stale_ms
from taken_back
