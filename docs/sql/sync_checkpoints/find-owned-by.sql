-- Returns the ids of the rows that `reap owned by` would take back. Sent after a data error has stopped it.
-- Parameters: $1 owner of the leases, $2 and $3 ids to leave out (array), $4 row limit
/* leasehold:find owned by sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select ('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']') as id
from leasehold.sync_checkpoints
where (completed_at is null and failed_at is null and locked_by is not null) and locked_by = $1::text
  and ((matrix_id, chunk_hash) in (select * from unnest((select $2::text[]), (select $3::text[])))) is not true
limit (select $4::int)
