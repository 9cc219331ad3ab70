-- $1 excluded1, $2 excluded2, $3 limit
/* leasehold:find expired sync_checkpoints */
select ('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']') as id
from leasehold.sync_checkpoints
where (completed_at is null and failed_at is null and locked_by is not null) and locked_until <= now()
  and ((matrix_id, chunk_hash) in (select * from unnest((select $1::text[]), (select $2::text[])))) is not true
limit (select $3::int)
