-- Returns the ids of the rows that `reap owned by` would take back. Sent after a data error has stopped it.
-- Parameters: $1 bucket, $2 owner of the leases, $3 ids to leave out (array), $4 row limit
/* leasehold:find owned by outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select id::text as id from leasehold.outbox
where bucket = $1::smallint and (status = 'CLAIMED') and claimed_by = $2::text
  and id <> all ((select $3::bigint[])::bigint[])
limit (select $4::int)
