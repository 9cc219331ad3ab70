-- $1 bucket, $2 excluded1, $3 limit
/* leasehold:find expired outbox */
select id::text as id
from leasehold.outbox
where bucket = $1::smallint and (status = 'CLAIMED') and locked_until <= now()
  and id <> all ((select $2::bigint[])::bigint[])
limit (select $3::int)
