-- $1 limit, $2 suspects, $3 alone, $4 groups, $5 rooms, $6 excluded1, $7 owner, $8 leaseMs
/* leasehold:claim by group sync_jobs */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with groups as materialized (
  select * from unnest((select $4::text[]), (select $5::int[]))
    as groups (name, room)
),
next as materialized (
  select row.id, row.priority, row.created_at, row.definition, row.suspect, row.load, groups.room
  from groups cross join lateral (
    select definition, id, priority, created_at, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 then 1000000 else 1 end as load
    from leasehold.sync_jobs
    where definition = groups.name and expiries < 2 and (completed_at is null and failed_at is null)
      and next_check_at <= now() and coalesce(locked_by is null or locked_until is null, true)
      and id <> all ((select $6::bigint[])::bigint[])
    order by priority desc, created_at, id limit least(groups.room, $1::int)
    for update skip locked
  ) as row
),
suspect as materialized (          -- as many as the process has room for
  select row.id, row.priority, row.created_at, row.definition, row.suspect, row.load, groups.room
  from groups cross join lateral (
    select definition, id, priority, created_at, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 then 1000000 else 1 end as load
    from leasehold.sync_jobs
    where definition = groups.name and expiries >= 2 and (completed_at is null and failed_at is null)
      and next_check_at <= now() and coalesce(locked_by is null or locked_until is null, true)
      and id <> all ((select $6::bigint[])::bigint[])
    order by priority desc, created_at, id limit least(groups.room, $2::int)
    for update skip locked
  ) as row
  limit (select $2::int)
),
found as (
  select * from next
  union all select * from suspect
),
chosen as materialized (
  select *
  from (
    select *, row_number() over (partition by definition order by priority desc, created_at, id) as nth,
      row_number() over (order by priority desc, created_at, id) as nth_of_all,
      sum(load) over (order by priority desc, created_at, id rows unbounded preceding) as all_load
    from found
  ) as ranked
  where nth <= room and nth_of_all <= $1::int
    and (load = 0 or all_load <= $2::int or ($3::boolean and all_load = load))
  order by priority desc, created_at, id
),
taken as materialized (
  select t.id, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 then 1000000 else 1 end as load
  from leasehold.sync_jobs as t
  where t.id = any (array(select id from chosen))
    and ((completed_at is null and failed_at is null) and next_check_at <= now()
      and coalesce(locked_by is null or locked_until is null, true)) is true
  for update skip locked
),
claimed as (
  update leasehold.sync_jobs as t
  set locked_until = now() + $8::float8 * interval '1 millisecond', locked_by = $7::text,
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
  where t.id = any (array(select id from taken))
  returning t.lock_token, t.id, t.definition, t.matrix_id, t.params, t.priority, t.force, t.attempts, t.created_at,
    t.planned_at
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $8::float8 * interval '1 millisecond') * 1000,
  'order', (select json_agg(id::text) from chosen),
  'more', (select count(*) from found) > (select count(*) from chosen),
  'dueInMs', null,
  'suspects', (select json_agg(id::text) from taken where load > 0),
  'alone', (select max(load) >= 1000000 from taken)
)) as facts full join claimed on false
