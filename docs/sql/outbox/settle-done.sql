-- Ends the given leases with the outcome `done`, as far as they are still held. Returns the ids of the rows.
-- Parameters: $1 ids (array), $2 their tokens (array), $3 owner, $4 bucket
/* leasehold:settle done outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($1::bigint[], $2::bigint[]) as held (id, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.id from leasehold.outbox as t
  where t.bucket = $4::smallint and t.id = any (array(select id from held)) and (t.claimed_by = $3::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  for no key update skip locked
)
update leasehold.outbox as t
set claimed_by = null, locked_until = null, status = 'PUBLISHED', published_at = now(), published_by = claimed_by
where t.bucket = $4::smallint and t.id = any (array(select id from ours))
returning t.id::text
