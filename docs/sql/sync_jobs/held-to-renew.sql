-- Sent for the leases that were not renewed. Returns those that are still held and have not expired: another session
-- has locked their rows. The others are lost.
-- Parameters: $1 ids (array), $2 their tokens (array), $3 owner
/* leasehold:held to renew sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($1::bigint[], $2::bigint[]) as held (id, held_token)
)
select t.id::text from leasehold.sync_jobs as t
where t.id = any (array(select id from held)) and (t.locked_by = $3::text) is true
  and ((t.id, t.lock_token) in (select id, held_token from held)) is true and t.locked_until > now()
  and (completed_at is null and failed_at is null and locked_by is not null) is true
