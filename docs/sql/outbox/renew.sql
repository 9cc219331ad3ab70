-- Extends the given leases, as far as they are still held and have not expired. Returns the ids of their rows.
-- Parameters: $1 ids (array), $2 their tokens (array), $3 owner, $4 bucket, $5 lease in ms
/* leasehold:renew outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($1::bigint[], $2::bigint[]) as held (id, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.id from leasehold.outbox as t
  where t.bucket = $4::smallint and t.id = any (array(select id from held)) and (t.claimed_by = $3::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true and t.locked_until > now()
    and (status = 'CLAIMED') is true
  for no key update skip locked
)
update leasehold.outbox as t
set locked_until = greatest(t.locked_until, now() + $5::float8 * interval '1 millisecond')
where t.bucket = $4::smallint and t.id = any (array(select id from ours))
returning t.id::text
