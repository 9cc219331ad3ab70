-- Extends the given leases, as far as they are still held and have not expired. Returns the ids of their rows.
-- Parameters: $1 and $2 ids (array), $3 their tokens (array), $4 owner, $5 lease in ms
/* leasehold:renew sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): is true, any (array(select …))
with held as materialized (
  select * from unnest($1::text[], $2::text[], $3::bigint[]) as held (matrix_id, chunk_hash, held_token)
),
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select t.matrix_id, t.chunk_hash from leasehold.sync_checkpoints as t
  where t.matrix_id = any (array(select matrix_id from held))
    and t.chunk_hash = any (array(select chunk_hash from held))
    and (t.locked_by = $4::text) is true
    and ((t.matrix_id, t.chunk_hash, t.lock_token) in (select matrix_id, chunk_hash, held_token from held)) is true
    and t.locked_until > now() and (completed_at is null and failed_at is null and locked_by is not null) is true
  for no key update skip locked
)
update leasehold.sync_checkpoints as t
set locked_until = greatest(t.locked_until, now() + $5::float8 * interval '1 millisecond')
where t.matrix_id = any (array(select matrix_id from ours)) and t.chunk_hash = any (array(select chunk_hash from ours))
  and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from ours)) is true
returning ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']')
