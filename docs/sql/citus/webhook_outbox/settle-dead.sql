-- Ends the given leases with the outcome `dead`, as far as they are still held. Returns the ids of the rows.
-- Parameters: $1 arguments (JSON, by row id), $2 ids (array), $3 their tokens (array), $4 owner, $5 bucket
/* leasehold:settle dead webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($2::bigint[], $3::bigint[]) as held (id, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.id from leasehold.webhook_outbox as t
  where t.bucket = $5::smallint and t.id = any (array(select id from held)) and (t.lease_owner = $4::text) is true
    and ((t.id, t.lease_token) in (select id, held_token from held)) is true
  for no key update skip locked
)
update leasehold.webhook_outbox as t
set lease_owner = null, lease_until = null, attempts = attempts + 1,
  last_error = ($1::jsonb -> t.id::text ->> 'error')::text,
  last_attempt_at = (select coalesce(now() - ($1::jsonb -> t.id::text ->> 'duration_ms')::int
    * interval '1 millisecond', last_attempt_at)),
  last_duration_ms = ($1::jsonb -> t.id::text ->> 'duration_ms')::int,
  last_status = ($1::jsonb -> t.id::text ->> 'status')::int,
  last_error_code = ($1::jsonb -> t.id::text ->> 'code')::text,
  last_response = ($1::jsonb -> t.id::text ->> 'response')::text,
  history = (select case when jsonb_array_length(history) >= 100 then history - 0 else history end
      || jsonb_build_array(jsonb_build_object('attempt', attempts + 1, 'token', lease_token,
        'started_at', now() - ($1::jsonb -> t.id::text ->> 'duration_ms')::int * interval '1 millisecond',
        'duration_ms', ($1::jsonb -> t.id::text ->> 'duration_ms')::int,
        'status', ($1::jsonb -> t.id::text ->> 'status')::int, 'error_code', ($1::jsonb -> t.id::text ->> 'code')::text,
        'error', ($1::jsonb -> t.id::text ->> 'error')::text,
        'response', ($1::jsonb -> t.id::text ->> 'response')::text, 'recorded_at', now()))),
  delivery_status = 'failed', failed_at = now()
where t.bucket = $5::smallint and t.id = any (array(select id from ours))
returning t.id::text
