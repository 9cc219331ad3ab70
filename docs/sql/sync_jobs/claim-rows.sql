-- Claims the given rows, also suspects, as far as they can be claimed now.
-- Parameters: $1 ids (array), $2 owner, $3 lease in ms
/* leasehold:claim rows sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), any (array(select …))
with wanted as materialized (  -- the planner takes any (array(select …)) for ten rows
  select * from unnest($1::bigint[]) as wanted (id)
),
taken as materialized (
  select t.id from leasehold.sync_jobs as t
  where t.id = any (array(select id from wanted))
    and ((completed_at is null and failed_at is null) and next_check_at <= now()
      and coalesce(locked_by is null or locked_until is null, true)) is true
  for update skip locked
)
update leasehold.sync_jobs as t
set locked_until = now() + $3::float8 * interval '1 millisecond', locked_by = $2::text,
  -- the first token of a row is the time, each later one is one higher
  lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
where t.id = any (array(select id from taken))
returning t.lock_token, date_part('epoch', t.locked_until) * 1000, t.priority::text,
  (t.created_at at time zone 'utc')::text,
  t.id, t.definition, t.matrix_id, t.params, t.priority, t.force, t.attempts, t.created_at, t.planned_at
