-- $1 id1, $2 id2, $3 owner, $4 leaseMs
/* leasehold:claim rows sync_checkpoints */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with wanted as materialized (
  select * from unnest($1::text[], $2::text[]) as wanted (matrix_id, chunk_hash)
),
taken as materialized (
  select t.matrix_id, t.chunk_hash
  from leasehold.sync_checkpoints as t
  where t.matrix_id = any (array(select matrix_id from wanted))
    and t.chunk_hash = any (array(select chunk_hash from wanted))
    and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from wanted)) is true
    and ((completed_at is null and failed_at is null and needed) and next_attempt_at <= now()
      and coalesce(locked_by is null or locked_until is null, true)) is true
  order by priority desc, "position", matrix_id, chunk_hash
  for update skip locked
),
claimed as (
  update leasehold.sync_checkpoints as t
  set locked_until = now() + $4::float8 * interval '1 millisecond', locked_by = $3::text,
    lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
  where t.matrix_id = any (array(select matrix_id from taken))
    and t.chunk_hash = any (array(select chunk_hash from taken))
    and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from taken)) is true
  returning t.lock_token, ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']'),
    t.matrix_id, t.chunk_hash, t.definition, t.chunk_query, t.attempts
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $4::float8 * interval '1 millisecond') * 1000,
  'order', (select json_agg(('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']')) from taken)
)) as facts full join claimed on false
