-- Returns the ids of the rows that `reap expired` would take back. Sent after a data error has stopped it.
-- Parameters: $1 grace period in ms, $2 owners that are alive (array), $3 ids to leave out (array), $4 row limit
/* leasehold:find expired sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select id::text as id from leasehold.sync_jobs
where (completed_at is null and failed_at is null and locked_by is not null) and locked_until <= now()
  and (locked_until > now() - (select $1::float8)
    * interval '1 millisecond'  -- for this time it is left to a living owner
    and locked_by = any ((select $2::text[])::text[])) is not true
  and id <> all ((select $3::bigint[])::bigint[])
limit (select $4::int)
