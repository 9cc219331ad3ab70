-- Claims suspects: rows of which at least two leases have ended, since the last retry, because the worker process died.
-- Parameters: $1 also those that must run alone, $2 and $3 ids to leave out (array), $4 row limit, $5 groups (array),
--   $6 owner, $7 lease in ms
/* leasehold:claim suspects sync_checkpoints */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), (select $n), any (array(select …))
with next as materialized (  -- the next suspects that are due
  select row.*
  from unnest((select $5::text[])) as groups (name)
  cross join lateral (
    select t.matrix_id, t.chunk_hash from leasehold.sync_checkpoints as t
    where t.definition = groups.name and (completed_at is null and failed_at is null and needed)
      and next_attempt_at <= now()
      and coalesce(locked_by is null or locked_until is null, true) and expiries >= 2
      and ((select $1::boolean)  -- false: none that must run alone (more than 2 expiries, or the last attempt)
        or (expiries > 2) is not true)
      and ((t.matrix_id, t.chunk_hash) in (select * from unnest((select $2::text[]), (select $3::text[])))) is not true
    order by t.priority desc, t."position", t.matrix_id, t.chunk_hash limit (select $4::int) for update skip locked
  ) as row
  limit (select $4::int)
)
update leasehold.sync_checkpoints as t
set locked_until = now() + $7::float8 * interval '1 millisecond', locked_by = $6::text,
  -- the first token of a row is the time, each later one is one higher
  lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
where t.matrix_id = any (array(select matrix_id from next)) and t.chunk_hash = any (array(select chunk_hash from next))
  and ((t.matrix_id, t.chunk_hash) in (select matrix_id, chunk_hash from next)) is true
returning t.lock_token, date_part('epoch', t.locked_until) * 1000,
  ('[' || to_json(t.matrix_id::text)::text || ',' || to_json(t.chunk_hash::text)::text || ']'), t.priority::text,
  t."position"::text, t.matrix_id::text, t.chunk_hash::text, t.matrix_id, t.chunk_hash, t.definition, t.chunk_query,
  t.attempts
