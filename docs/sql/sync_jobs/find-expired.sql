-- $1 excluded1, $2 limit
/* leasehold:find expired sync_jobs */
select id::text as id
from leasehold.sync_jobs
where (completed_at is null and failed_at is null and locked_by is not null) and locked_until <= now()
  and id <> all ((select $1::bigint[])::bigint[])
limit (select $2::int)
