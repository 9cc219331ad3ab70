-- Returns the ids of the rows that `claim by group` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 and $2 ids to leave out (array), $3 groups (array), $4 row limit of each group (array), $5 row limit
/* leasehold:find by group sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n)
select ('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']') from (
  select row.*
  from unnest((select $3::text[]), (select $4::int[])) as groups (name, room) cross join lateral (
    select matrix_id, chunk_hash, priority, "position" from leasehold.sync_checkpoints
    where definition = groups.name and (completed_at is null and failed_at is null and needed)
      and next_attempt_at <= now()
      and coalesce(locked_by is null or locked_until is null, true) and expiries < 2
      and ((matrix_id, chunk_hash) in (select * from unnest((select $1::text[]), (select $2::text[])))) is not true
    order by priority desc, "position", matrix_id, chunk_hash limit least(groups.room, $5::int)
  ) as row
) as next
order by next.priority desc, next."position", next.matrix_id, next.chunk_hash limit (select $5::int)
