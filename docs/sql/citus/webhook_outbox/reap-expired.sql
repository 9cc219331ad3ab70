-- Takes back leases that have expired: the rows can be claimed again, or are dead if their attempts are used up.
-- Parameters: $1 ids (array), $2 bucket, $3 grace period in ms, $4 owners that are alive (array),
--   $5 ids to leave out (array), $6 row limit, $7 error text or null, $8 delays in ms (array)
/* leasehold:reap expired webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n), any (array(select …))
with taken_back as materialized (
  select id, lease_owner as held_owner, lease_token::text as held_token,
    lease_until as held_until, coalesce(attempts >= 9, false) as exhausted
  from leasehold.webhook_outbox
  where bucket = $2::smallint and (delivery_status = 'pending' and lease_owner is not null) and lease_until <= now()
    and (lease_until > now() - (select $3::float8)
      * interval '1 millisecond'  -- for this time it is left to a living owner
      and lease_owner = any ((select $4::text[])::text[])) is not true
    and ($1::bigint[] is null or (id) in (select * from unnest($1::bigint[])))
    and id <> all ((select $5::bigint[])::bigint[])
  limit (select $6::int) for update skip locked
),
reaped as (
  update leasehold.webhook_outbox as t
  set lease_owner = null, lease_until = null, attempts = attempts + 1,
    expiries = expiries + case  -- not counted if the owner is alive: then no process has died
      when lease_owner = any ($4::text[]) then 0 else 1 end,
    last_error = coalesce($7::text,
      'the lease expired: its dispatcher died, lost the database connection, or took longer than maxLeases allows'),
    next_attempt_at = (select case when attempts >= 9 then next_attempt_at
      else now()
      + (case when expiries = 0 then 0  -- at once after the first expiry, then after the delay of this attempt
        else coalesce(($8::float8[])[least(attempts, cardinality($8::float8[]) - 1) + 1], 0) end)
        * interval '1 millisecond' end),
    last_attempt_at = (select coalesce(now() - null::int * interval '1 millisecond', last_attempt_at)),
    last_duration_ms = null::int, last_status = null::int, last_error_code = 'leaseExpired', last_response = null::text,
    history = (select case when jsonb_array_length(history) >= 100 then history - 0 else history end
      || jsonb_build_array(jsonb_build_object('attempt', attempts + 1, 'token', lease_token,
        'started_at', now() - null::int * interval '1 millisecond', 'duration_ms', null::int, 'status', null::int,
        'error_code', 'leaseExpired', 'error', coalesce($7::text,
        'the lease expired: its dispatcher died, lost the database connection, or took longer than maxLeases allows'),
        'response', null::text, 'recorded_at', now()))),
    delivery_status = case when attempts >= 9 then 'failed' else delivery_status end,
    failed_at = (select case when attempts >= 9 then now() else failed_at end)
  where t.bucket = $2::smallint and t.id = any (array(select id from taken_back))
)
select id::text as id, held_owner as owner, held_token as token, exhausted,
  greatest(0, extract(epoch from now() - held_until)::float8 * 1000) as stale_ms
from taken_back
