-- $1 id1, $2 tokens, $3 owner, $4 bucket
/* leasehold:held outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($1::bigint[], $2::bigint[]) as held (id, held_token)
)
select t.id::text from leasehold.outbox as t
where t.bucket = $4::smallint and t.id = any (array(select id from held)) and (t.claimed_by = $3::text) is true
  and ((t.id, t.lock_token) in (select id, held_token from held)) is true
