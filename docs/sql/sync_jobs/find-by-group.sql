-- Returns the ids of the rows that `claim by group` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 ids to leave out (array), $2 groups (array), $3 row limit of each group (array), $4 row limit
/* leasehold:find by group sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n)
select id::text from (
  select row.*
  from unnest((select $2::text[]), (select $3::int[])) as groups (name, room) cross join lateral (
    select id, priority, created_at from leasehold.sync_jobs
    where definition = groups.name and (completed_at is null and failed_at is null) and next_check_at <= now()
      and coalesce(locked_by is null or locked_until is null, true) and expiries < 2
      and id <> all ((select $1::bigint[])::bigint[])
    order by priority desc, created_at, id limit least(groups.room, $4::int)
  ) as row
) as next
order by next.priority desc, next.created_at, next.id limit (select $4::int)
