-- Ends the given leases with the outcome `dead`, as far as they are still held. Returns the ids of the rows.
-- Parameters: $1 arguments (JSON, by row id), $2 ids (array), $3 their tokens (array), $4 owner
/* leasehold:settle dead sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($2::bigint[], $3::bigint[]) as held (id, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.id from leasehold.sync_jobs as t
  where t.id = any (array(select id from held)) and (t.locked_by = $4::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  for no key update skip locked
)
update leasehold.sync_jobs as t
set locked_by = null, locked_until = null, attempts = attempts,
  error_message = ($1::jsonb -> t.id::text ->> 'error')::text, failed_at = now()
where t.id = any (array(select id from ours))
returning t.id::text
