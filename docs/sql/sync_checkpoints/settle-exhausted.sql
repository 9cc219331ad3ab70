-- Ends the given leases with the outcome `exhausted`, as far as they are still held. Returns the ids of the rows.
-- Parameters: $1 arguments (JSON, by row id), $2 and $3 ids (array), $4 their tokens (array), $5 owner
/* leasehold:settle exhausted sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($2::text[], $3::text[], $4::bigint[]) as held (matrix_id, chunk_hash, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.matrix_id, t.chunk_hash from leasehold.sync_checkpoints as t
  where t.matrix_id = any (array(select matrix_id from held))
    and t.chunk_hash = any (array(select chunk_hash from held))
    and (t.locked_by = $5::text) is true
    and ((t.matrix_id, t.chunk_hash, t.lock_token) in (select matrix_id, chunk_hash, held_token from held)) is true
  for no key update skip locked
)
update leasehold.sync_checkpoints as t
set locked_by = null, locked_until = null, failed_at = now(),
  error_message = ($1::jsonb -> ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text
    || ']') ->> 'error')::text
where t.matrix_id = any (array(select matrix_id from ours)) and t.chunk_hash = any (array(select chunk_hash from ours))
  and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from ours)) is true
returning ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']')
