-- $1 graceMs, $2 living, $3 excluded1, $4 limit
/* leasehold:find expired sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select id::text as id from leasehold.sync_jobs
where (completed_at is null and failed_at is null and locked_by is not null) and locked_until <= now()
  and (locked_until > now() - (select $1::float8) * interval '1 millisecond'  -- it is left to an owner that is alive
    and locked_by = any ((select $2::text[])::text[])) is not true
  and id <> all ((select $3::bigint[])::bigint[])
limit (select $4::int)
