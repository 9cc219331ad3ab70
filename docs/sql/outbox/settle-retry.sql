-- Ends the given leases with the outcome `retry`, as far as they are still held. The expiries start again at 0: the
-- handler came back, so the row has not ended its process. Returns the ids of the rows.
-- Parameters: $1 arguments (JSON, by row id), $2 ids (array), $3 their tokens (array), $4 owner, $5 bucket
/* leasehold:settle retry outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($2::bigint[], $3::bigint[]) as held (id, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.id from leasehold.outbox as t
  where t.bucket = $5::smallint and t.id = any (array(select id from held)) and (t.claimed_by = $4::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  for no key update skip locked
)
update leasehold.outbox as t
set claimed_by = null, locked_until = null, expiries = 0, attempts = attempts + 1,
  last_error = ($1::jsonb -> t.id::text ->> 'error')::text,
  available_at = now() + coalesce(($1::jsonb -> t.id::text ->> 'delay_ms')::float8, 0) * interval '1 millisecond',
  status = 'PENDING', claimed_at = null,
  history = (case when jsonb_array_length(history) >= 20 then history - 0 else coalesce(history, '[]') end
      || jsonb_build_array(jsonb_build_object('outcome', 'retry', 'attempt', attempts + 1, 'token', lock_token::text,
        'claimed_at', claimed_at, 'owner', claimed_by, 'until', locked_until, 'ended_at', now(),
        'error', left(($1::jsonb -> t.id::text ->> 'error')::text, 500))))
where t.bucket = $5::smallint and t.id = any (array(select id from ours))
returning t.id::text
