-- Returns the ids of the rows that `reap owned by` would take back. Sent after a data error has stopped it.
-- Parameters: $1 bucket, $2 owner of the leases, $3 ids to leave out (array), $4 row limit
/* leasehold:find owned by webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select id::text as id from leasehold.webhook_outbox
where bucket = $1::smallint and (delivery_status = 'pending' and lease_owner is not null) and lease_owner = $2::text
  and id <> all ((select $3::bigint[])::bigint[])
limit (select $4::int)
