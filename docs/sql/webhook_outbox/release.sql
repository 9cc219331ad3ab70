-- Gives rows back: they can be claimed again after the delay, and no attempt is counted. Returns their ids.
-- Parameters: $1 delay in ms, $2 ids (array), $3 their tokens (array), $4 owner, $5 bucket
/* leasehold:release webhook_outbox */
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
set lease_owner = null, lease_until = null,
  next_attempt_at = greatest(next_attempt_at, now() + $1::float8 * interval '1 millisecond')
where t.bucket = $5::smallint and t.id = any (array(select id from ours))
returning t.id::text
