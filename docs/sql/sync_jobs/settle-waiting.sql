/* leasehold:settle waiting sync_jobs */
with held as materialized (
  select * from unnest($2::bigint[], $3::bigint[]) as held (id, held_token)
),
locked as materialized (            -- what another session has locked is tried again later
  select t.id
  from leasehold.sync_jobs as t
  where t.id = any (array(select id from held)) and (t.locked_by = $4::text) is true
    and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  for no key update skip locked
),
settled as (
  update leasehold.sync_jobs as t
  set locked_by = null, locked_until = null,
    next_look_at = now() + ($1::jsonb -> t.id::text ->> 'delay_ms')::float8 * interval '1 millisecond',
    attempts = 0, expiries = 0
  where t.id = any (array(select id from locked))
  returning t.id
)
select id::text as id, false as busy from settled
union all
select t.id::text, true
from leasehold.sync_jobs as t
where (select count(*) from locked) < (select count(*) from held) and t.id = any (array(select id from held))
  and (t.locked_by = $4::text) is true and ((t.id, t.lock_token) in (select id, held_token from held)) is true
  and ((t.id) in (select id from locked)) is not true
