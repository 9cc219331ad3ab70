-- $1 bucket, $2 ownedBy, $3 excluded1, $4 limit
/* leasehold:find owned by outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select id::text as id from leasehold.outbox
where bucket = $1::smallint and (status = 'CLAIMED') and claimed_by = $2::text
  and id <> all ((select $3::bigint[])::bigint[])
limit (select $4::int)
