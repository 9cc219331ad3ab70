-- $1 bucket, $2 excluded1, $3 limit
/* leasehold:find expired webhook_outbox */
select id::text as id
from leasehold.webhook_outbox
where bucket = $1::smallint and (delivery_status = 'pending' and lease_owner is not null) and lease_until <= now()
  and id <> all ((select $2::bigint[])::bigint[])
limit (select $3::int)
