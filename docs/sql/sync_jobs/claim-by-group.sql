-- Claims the next rows that are due of each of the given groups, as many as the group has room for. Rows with two or
-- more expiries are left to `claim suspects`.
-- Parameters: $1 ids to leave out (array), $2 groups (array), $3 row limit of each group (array), $4 row limit,
--   $5 owner, $6 lease in ms
/* leasehold:claim by group sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n), any (array(select …))
with next as materialized (  -- of each group the next rows that are due, as many as it has room for; all are locked
  select row.*
  from unnest((select $2::text[]), (select $3::int[])) as groups (name, room) cross join lateral (
    select id, priority, created_at from leasehold.sync_jobs
    where definition = groups.name and (completed_at is null and failed_at is null) and next_check_at <= now()
      and coalesce(locked_by is null or locked_until is null, true) and expiries < 2
      and id <> all ((select $1::bigint[])::bigint[])
    order by priority desc, created_at, id limit least(groups.room, $4::int) for update skip locked
  ) as row
),
chosen as materialized (
  select * from next order by priority desc, created_at, id limit (select $4::int)
)
update leasehold.sync_jobs as t
set locked_until = now() + $6::float8 * interval '1 millisecond', locked_by = $5::text,
  -- the first token of a row is the time, each later one is one higher
  lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
where t.id = any (array(select id from chosen))
returning t.lock_token, date_part('epoch', t.locked_until) * 1000, t.priority::text,
  (t.created_at at time zone 'utc')::text,
  t.id, t.definition, t.matrix_id, t.params, t.priority, t.force, t.attempts, t.created_at, t.planned_at
