-- Returns the ids of the rows that `claim suspects` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 also those that must run alone, $2 and $3 ids to leave out (array), $4 row limit, $5 groups (array)
/* leasehold:find suspects sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n)
select row.*
from unnest((select $5::text[])) as groups (name)
cross join lateral (
  select ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']')
  from leasehold.sync_checkpoints as t
  where t.definition = groups.name and (completed_at is null and failed_at is null and needed)
    and next_attempt_at <= now()
    and coalesce(locked_by is null or locked_until is null, true) and expiries >= 2
    and ((select $1::boolean)  -- false: none that must run alone (more than 2 expiries, or the last attempt)
      or (expiries > 2) is not true)
    and ((t.matrix_id, t.chunk_hash) in (select * from unnest((select $2::text[]), (select $3::text[])))) is not true
  order by t.priority desc, t."position", t.matrix_id, t.chunk_hash limit (select $4::int)
) as row
limit (select $4::int)
