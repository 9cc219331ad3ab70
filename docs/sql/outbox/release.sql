-- Gives rows back: they can be claimed again after the delay, and no attempt is counted. Returns their ids.
-- Parameters: $1 delay in ms, $2 ids (array), $3 their tokens (array), $4 owner, $5 bucket
/* leasehold:release outbox */
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
set claimed_by = null, locked_until = null, status = 'PENDING',
  available_at = now() + $1::float8 * interval '1 millisecond', claimed_at = null
where t.bucket = $5::smallint and t.id = any (array(select id from ours))
returning t.id::text
