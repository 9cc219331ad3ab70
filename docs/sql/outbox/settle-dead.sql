/* leasehold:settle dead outbox */
with held as materialized (
  select * from unnest($2::bigint[], $3::bigint[]) as held (id, held_token)
),
locked as materialized (            -- what another session has locked is tried again later
  select t.id
  from leasehold.outbox as t
  where t.bucket = $5::smallint and t.id = any (array(select id from held)) and (t.claimed_by = $4::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  for no key update skip locked
),
settled as (
  update leasehold.outbox as t
  set claimed_by = null, locked_until = null, status = 'DEAD', attempts = attempts + 1,
    last_error = ($1::jsonb -> t.id::text ->> 'error')::text, dead_at = now(), parked = false,
    claimed_at = null
  where t.bucket = $5::smallint and t.id = any (array(select id from locked))
  returning t.id, t.ordering_key
)
select id::text as id, false as busy from settled
union all
select t.id::text, true
from leasehold.outbox as t
where (select count(*) from locked) < (select count(*) from held) and t.bucket = $5::smallint
  and t.id = any (array(select id from held)) and (t.claimed_by = $4::text) is true
  and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  and ((t.id) in (select id from locked)) is not true
