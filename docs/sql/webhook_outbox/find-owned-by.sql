-- $1 bucket, $2 ownedBy, $3 excluded1, $4 limit
/* leasehold:find owned by webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select id::text as id from leasehold.webhook_outbox
where bucket = $1::smallint and (delivery_status = 'pending' and lease_owner is not null) and lease_owner = $2::text
  and id <> all ((select $3::bigint[])::bigint[])
limit (select $4::int)
