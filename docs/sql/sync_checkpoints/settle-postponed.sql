/* leasehold:settle postponed sync_checkpoints */
with held as materialized (
  select * from unnest($2::text[], $3::text[], $4::bigint[]) as held (matrix_id, chunk_hash, held_token)
),
locked as materialized (            -- what another session has locked is tried again later
  select t.matrix_id, t.chunk_hash
  from leasehold.sync_checkpoints as t
  where t.matrix_id = any (array(select matrix_id from held))
    and t.chunk_hash = any (array(select chunk_hash from held)) and (t.locked_by = $5::text) is true
    and ((t.matrix_id, t.chunk_hash, t.lock_token) in (select matrix_id, chunk_hash, held_token from held)) is true
  for no key update skip locked
),
settled as (
  update leasehold.sync_checkpoints as t
  set locked_by = null, locked_until = null,
    next_attempt_at = now() + ($1::jsonb -> ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']') ->> 'delay_ms')::float8 * interval '1 millisecond'
  where t.matrix_id = any (array(select matrix_id from locked))
    and t.chunk_hash = any (array(select chunk_hash from locked))
    and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from locked)) is true
  returning t.matrix_id, t.chunk_hash
)
select ('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']') as id, false as busy from settled
union all
select ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']'), true
from leasehold.sync_checkpoints as t
where (select count(*) from locked) < (select count(*) from held)
  and t.matrix_id = any (array(select matrix_id from held))
  and t.chunk_hash = any (array(select chunk_hash from held)) and (t.locked_by = $5::text) is true
  and ((t.matrix_id, t.chunk_hash, t.lock_token) in (select matrix_id, chunk_hash, held_token from held)) is true
  and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from locked)) is not true
