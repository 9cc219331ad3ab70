-- Returns the ids of the rows that `reap expired` would take back. Sent after a data error has stopped it.
-- Parameters: $1 grace period in ms, $2 owners that are alive (array), $3 and $4 ids to leave out (array), $5 row limit
/* leasehold:find expired sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select ('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']') as id
from leasehold.sync_checkpoints
where (completed_at is null and failed_at is null and locked_by is not null) and locked_until <= now()
  and (locked_until > now() - (select $1::float8)
    * interval '1 millisecond'  -- for this time it is left to a living owner
    and locked_by = any ((select $2::text[])::text[])) is not true
  and ((matrix_id, chunk_hash) in (select * from unnest((select $3::text[]), (select $4::text[])))) is not true
limit (select $5::int)
