/* leasehold:find expired outbox */
select id::text as id
from leasehold.outbox
where bucket = $1::smallint and (status = 'CLAIMED') and locked_until <= now()
  and ((id) in (select * from unnest($2::bigint[]))) is not true
limit (select $3::int)
