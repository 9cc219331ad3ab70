/* leasehold:find owned by outbox */
select id::text as id
from leasehold.outbox
where bucket = $2::smallint and (status = 'CLAIMED') and claimed_by = $1::text
  and ((id) in (select * from unnest($3::bigint[]))) is not true
limit (select $4::int)
