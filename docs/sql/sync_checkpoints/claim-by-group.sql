-- $1 limit, $2 suspects, $3 alone, $4 groups, $5 rooms, $6 excluded1, $7 excluded2, $8 owner, $9 leaseMs
/* leasehold:claim by group sync_checkpoints */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with groups as materialized (
  select * from unnest((select $4::text[]), (select $5::int[]))
    as groups (name, room)
),
next as materialized (
  select row.matrix_id, row.chunk_hash, row.priority, row."position", row.definition, row.suspect, row.load, groups.room
  from groups cross join lateral (
    select definition, matrix_id, chunk_hash, priority, "position", expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 then 1000000 else 1 end as load
    from leasehold.sync_checkpoints
    where definition = groups.name and expiries < 2 and (completed_at is null and failed_at is null and needed)
      and next_attempt_at <= now() and coalesce(locked_by is null or locked_until is null, true)
      and ((matrix_id, chunk_hash) in (select * from unnest((select $6::text[]), (select $7::text[])))) is not true
    order by priority desc, "position", matrix_id, chunk_hash limit least(groups.room, $1::int)
    for update skip locked
  ) as row
),
suspect as materialized (          -- as many as the process has room for
  select row.matrix_id, row.chunk_hash, row.priority, row."position", row.definition, row.suspect, row.load, groups.room
  from groups cross join lateral (
    select definition, matrix_id, chunk_hash, priority, "position", expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 then 1000000 else 1 end as load
    from leasehold.sync_checkpoints
    where definition = groups.name and expiries >= 2 and (completed_at is null and failed_at is null and needed)
      and next_attempt_at <= now() and coalesce(locked_by is null or locked_until is null, true)
      and ((matrix_id, chunk_hash) in (select * from unnest((select $6::text[]), (select $7::text[])))) is not true
    order by priority desc, "position", matrix_id, chunk_hash limit least(groups.room, $2::int)
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
    select *, row_number() over (partition by definition order by priority desc, "position", matrix_id, chunk_hash) as nth,
      row_number() over (order by priority desc, "position", matrix_id, chunk_hash) as nth_of_all,
      sum(load) over (order by priority desc, "position", matrix_id, chunk_hash rows unbounded preceding) as all_load
    from found
  ) as ranked
  where nth <= room and nth_of_all <= $1::int
    and (load = 0 or all_load <= $2::int or ($3::boolean and all_load = load))
  order by priority desc, "position", matrix_id, chunk_hash
),
taken as materialized (
  select t.matrix_id, t.chunk_hash, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 then 1000000 else 1 end as load
  from leasehold.sync_checkpoints as t
  where t.matrix_id = any (array(select matrix_id from chosen))
    and t.chunk_hash = any (array(select chunk_hash from chosen))
    and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from chosen)) is true
    and ((completed_at is null and failed_at is null and needed) and next_attempt_at <= now()
      and coalesce(locked_by is null or locked_until is null, true)) is true
  for update skip locked
),
claimed as (
  update leasehold.sync_checkpoints as t
  set locked_until = now() + $9::float8 * interval '1 millisecond', locked_by = $8::text,
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
  where t.matrix_id = any (array(select matrix_id from taken))
    and t.chunk_hash = any (array(select chunk_hash from taken))
    and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from taken)) is true
  returning t.lock_token, ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']'),
    t.matrix_id, t.chunk_hash, t.definition, t.chunk_query, t.attempts
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $9::float8 * interval '1 millisecond') * 1000,
  'order', (select json_agg(('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']')) from chosen),
  'more', (select count(*) from found) > (select count(*) from chosen),
  'dueInMs', null,
  'suspects', (select json_agg(('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']')) from taken where load > 0),
  'alone', (select max(load) >= 1000000 from taken)
)) as facts full join claimed on false
