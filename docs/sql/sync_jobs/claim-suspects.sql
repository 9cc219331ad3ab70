-- Claims suspects: rows of which at least two leases have ended, since the last retry, because the worker process died.
-- Parameters: $1 also those that must run alone, $2 ids to leave out (array), $3 row limit, $4 groups (array),
--   $5 owner, $6 lease in ms
/* leasehold:claim suspects sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n), any (array(select …))
with next as materialized (  -- the next suspects that are due
  select row.*
  from unnest((select $4::text[])) as groups (name)
  cross join lateral (
    select t.id from leasehold.sync_jobs as t
    where t.definition = groups.name and (completed_at is null and failed_at is null) and next_check_at <= now()
      and coalesce(locked_by is null or locked_until is null, true) and expiries >= 2
      and ((select $1::boolean)  -- false: none that must run alone (more than 2 expiries, or the last attempt)
        or (expiries > 2) is not true)
      and t.id <> all ((select $2::bigint[])::bigint[])
    order by t.priority desc, t.created_at, t.id limit (select $3::int) for update skip locked
  ) as row
  limit (select $3::int)
)
update leasehold.sync_jobs as t
set locked_until = now() + $6::float8 * interval '1 millisecond', locked_by = $5::text,
  -- the first token of a row is the time, each later one is one higher
  lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
where t.id = any (array(select id from next))
returning t.lock_token, date_part('epoch', t.locked_until) * 1000, t.priority::text,
  (t.created_at at time zone 'utc')::text,
  t.id, t.definition, t.matrix_id, t.params, t.priority, t.force, t.attempts, t.created_at, t.planned_at
