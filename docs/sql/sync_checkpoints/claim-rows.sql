-- Claims the given rows, also suspects, as far as they can be claimed now.
-- Parameters: $1 and $2 ids (array), $3 owner, $4 lease in ms
/* leasehold:claim rows sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), any (array(select …))
with wanted as materialized (  -- the planner takes any (array(select …)) for ten rows
  select * from unnest($1::text[], $2::text[]) as wanted (matrix_id, chunk_hash)
),
taken as materialized (
  select t.matrix_id, t.chunk_hash from leasehold.sync_checkpoints as t
  where t.matrix_id = any (array(select matrix_id from wanted))
    and t.chunk_hash = any (array(select chunk_hash from wanted))
    and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from wanted)) is true
    and ((completed_at is null and failed_at is null and needed) and next_attempt_at <= now()
      and coalesce(locked_by is null or locked_until is null, true)) is true
  for update skip locked
)
update leasehold.sync_checkpoints as t
set locked_until = now() + $4::float8 * interval '1 millisecond', locked_by = $3::text,
  -- the first token of a row is the time, each later one is one higher
  lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
where t.matrix_id = any (array(select matrix_id from taken))
  and t.chunk_hash = any (array(select chunk_hash from taken))
  and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from taken)) is true
returning t.lock_token, date_part('epoch', t.locked_until) * 1000,
  ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']'), t.priority::text,
  t."position"::text, t.matrix_id::text, t.chunk_hash::text, t.matrix_id, t.chunk_hash, t.definition, t.chunk_query,
  t.attempts
