-- Returns the ids of the rows that `reap owned by` would take back. Sent after a data error has stopped it.
-- Parameters: $1 owner of the leases, $2 ids to leave out (array), $3 row limit
/* leasehold:find owned by sync_jobs */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select id::text as id from leasehold.sync_jobs
where (completed_at is null and failed_at is null and locked_by is not null) and locked_by = $1::text
  and id <> all ((select $2::bigint[])::bigint[])
limit (select $3::int)
