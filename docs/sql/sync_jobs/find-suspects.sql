-- Returns the ids of the rows that `claim suspects` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 also those that must run alone, $2 ids to leave out (array), $3 row limit, $4 groups (array)
/* leasehold:find suspects sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n)
select row.*
from unnest((select $4::text[])) as groups (name)
cross join lateral (
  select t.id::text from leasehold.sync_jobs as t
  where t.definition = groups.name and (completed_at is null and failed_at is null) and next_check_at <= now()
    and coalesce(locked_by is null or locked_until is null, true) and expiries >= 2
    and ((select $1::boolean)  -- false: none that must run alone (more than 2 expiries, or the last attempt)
      or (expiries > 2) is not true)
    and t.id <> all ((select $2::bigint[])::bigint[])
  order by t.priority desc, t.created_at, t.id limit (select $3::int)
) as row
limit (select $3::int)
