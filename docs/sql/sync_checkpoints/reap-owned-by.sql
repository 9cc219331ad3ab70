-- Takes back all leases of a worker that is known to be dead, also those that have not expired.
-- Parameters: $1 and $2 ids (array), $3 owner of the leases, $4 and $5 ids to leave out (array), $6 row limit,
--   $7 error text or null, $8 delays in ms (array)
/* leasehold:reap owned by sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): is true, (select $n), any (array(select …))
with taken_back as materialized (
  select matrix_id, chunk_hash, locked_by as held_owner, lock_token::text as held_token,
    locked_until as held_until, false as exhausted
  from leasehold.sync_checkpoints
  where (completed_at is null and failed_at is null and locked_by is not null) and locked_by = $3::text
    and ($1::text[] is null or (matrix_id, chunk_hash) in (select * from unnest($1::text[], $2::text[])))
    and ((matrix_id, chunk_hash) in (select * from unnest((select $4::text[]), (select $5::text[])))) is not true
  limit (select $6::int) for update skip locked
),
reaped as (
  update leasehold.sync_checkpoints as t
  set locked_by = null, locked_until = null, attempts = attempts + 1, expiries = expiries + 1,
    error_message = coalesce($7::text,
      'the lease expired: its worker died, lost the database connection, or took longer than maxLeases allows'),
    next_attempt_at = now()
      + (case when expiries = 0 then 0  -- at once after the first expiry, then after the delay of this attempt
        else coalesce(($8::float8[])[least(attempts, cardinality($8::float8[]) - 1) + 1], 0) end)
        * interval '1 millisecond'
  where t.matrix_id = any (array(select matrix_id from taken_back))
    and t.chunk_hash = any (array(select chunk_hash from taken_back))
    and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from taken_back)) is true
)
select ('[' || to_json(matrix_id::text)::text || ',' || to_json(chunk_hash::text)::text || ']') as id,
  held_owner as owner, held_token as token, exhausted,
  greatest(0, extract(epoch from now() - held_until)::float8 * 1000) as stale_ms
from taken_back
