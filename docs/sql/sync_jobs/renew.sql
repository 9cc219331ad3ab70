-- Extends the given leases, as far as they are still held and have not expired. Returns the ids of their rows.
-- Parameters: $1 ids (array), $2 their tokens (array), $3 owner, $4 lease in ms
/* leasehold:renew sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($1::bigint[], $2::bigint[]) as held (id, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.id from leasehold.sync_jobs as t
  where t.id = any (array(select id from held)) and (t.locked_by = $3::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true and t.locked_until > now()
    and (completed_at is null and failed_at is null and locked_by is not null) is true
  for no key update skip locked
)
update leasehold.sync_jobs as t
set locked_until = greatest(t.locked_until, now() + $4::float8 * interval '1 millisecond')
where t.id = any (array(select id from ours))
returning t.id::text
