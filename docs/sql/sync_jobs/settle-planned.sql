-- Ends the given leases with the outcome `planned`, as far as they are still held. Returns the ids of the rows.
-- Parameters: $1 ids (array), $2 their tokens (array), $3 owner
/* leasehold:settle planned sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($1::bigint[], $2::bigint[]) as held (id, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.id from leasehold.sync_jobs as t
  where t.id = any (array(select id from held)) and (t.locked_by = $3::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  for no key update skip locked
)
update leasehold.sync_jobs as t
set locked_by = null, locked_until = null, planned_at = now(), next_check_at = now(), attempts = 0, expiries = 0,
  error_message = null
where t.id = any (array(select id from ours))
returning t.id::text
