-- $1 groups, $2 rooms, $3 limit, $4 excluded1, $5 excluded2, $6 suspects
/* leasehold:find by group sync_checkpoints */
with groups as materialized (
  select * from unnest((select $1::text[]), (select $2::int[]))
    as groups (name, room)
),
next as materialized (
  select row.matrix_id, row.chunk_hash, row.priority, row."position", row.definition, row.suspect, row.load, groups.room
  from groups cross join lateral (
    select definition, matrix_id, chunk_hash, priority, "position", expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 then 1000000 else 1 end as load
    from leasehold.sync_checkpoints
    where definition = groups.name and expiries < 2 and (completed_at is null and failed_at is null and needed)
      and next_attempt_at <= now() and coalesce(locked_by is null or locked_until is null, true)
      and ((matrix_id, chunk_hash) in (select * from unnest((select $4::text[]), (select $5::text[])))) is not true
    order by priority desc, "position", matrix_id, chunk_hash limit least(groups.room, $3::int)
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
      and ((matrix_id, chunk_hash) in (select * from unnest((select $4::text[]), (select $5::text[])))) is not true
    order by priority desc, "position", matrix_id, chunk_hash limit least(groups.room, $6::int)
    for update skip locked
  ) as row
  limit (select $6::int)
),
found as (
  select * from next
  union all select * from suspect
)
select ('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']') as id, suspect
from found
limit (select $3::int)
