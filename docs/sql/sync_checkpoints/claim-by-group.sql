-- Claims the next rows that are due of each of the given groups, as many as the group has room for. Rows with two or
-- more expiries are left to `claim suspects`.
-- Parameters: $1 and $2 ids to leave out (array), $3 groups (array), $4 row limit of each group (array), $5 row limit,
--   $6 owner, $7 lease in ms
/* leasehold:claim by group sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), (select $n), any (array(select …))
with next as materialized (  -- of each group the next rows that are due, as many as it has room for; all are locked
  select row.*
  from unnest((select $3::text[]), (select $4::int[])) as groups (name, room) cross join lateral (
    select matrix_id, chunk_hash, priority, "position" from leasehold.sync_checkpoints
    where definition = groups.name and (completed_at is null and failed_at is null and needed)
      and next_attempt_at <= now()
      and coalesce(locked_by is null or locked_until is null, true) and expiries < 2
      and ((matrix_id, chunk_hash) in (select * from unnest((select $1::text[]), (select $2::text[])))) is not true
    order by priority desc, "position", matrix_id, chunk_hash limit least(groups.room, $5::int) for update skip locked
  ) as row
),
chosen as materialized (
  select * from next order by priority desc, "position", matrix_id, chunk_hash limit (select $5::int)
)
update leasehold.sync_checkpoints as t
set locked_until = now() + $7::float8 * interval '1 millisecond', locked_by = $6::text,
  -- the first token of a row is the time, each later one is one higher
  lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
where t.matrix_id = any (array(select matrix_id from chosen))
  and t.chunk_hash = any (array(select chunk_hash from chosen))
  and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from chosen)) is true
returning t.lock_token, date_part('epoch', t.locked_until) * 1000,
  ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']'), t.priority::text,
  t."position"::text, t.matrix_id::text, t.chunk_hash::text, t.matrix_id, t.chunk_hash, t.definition, t.chunk_query,
  t.attempts
