-- $1 groups, $2 rooms, $3 limit, $4 excluded1, $5 suspects
/* leasehold:find by group sync_jobs */
with groups as materialized (
  select * from unnest((select $1::text[]), (select $2::int[]))
    as groups (name, room)
),
next as materialized (
  select row.id, row.priority, row.created_at, row.definition, row.suspect, row.load, groups.room
  from groups cross join lateral (
    select definition, id, priority, created_at, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 then 1000000 else 1 end as load
    from leasehold.sync_jobs
    where definition = groups.name and expiries < 2 and (completed_at is null and failed_at is null)
      and next_check_at <= now() and coalesce(locked_by is null or locked_until is null, true)
      and id <> all ((select $4::bigint[])::bigint[])
    order by priority desc, created_at, id limit least(groups.room, $3::int)
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
      and id <> all ((select $4::bigint[])::bigint[])
    order by priority desc, created_at, id limit least(groups.room, $5::int)
    for update skip locked
  ) as row
  limit (select $5::int)
),
found as (
  select * from next
  union all select * from suspect
)
select id::text as id, suspect
from found
limit (select $3::int)
