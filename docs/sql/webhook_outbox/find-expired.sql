-- Returns the ids of the rows that `reap expired` would take back. Sent after a data error has stopped it.
-- Parameters: $1 bucket, $2 grace period in ms, $3 owners that are alive (array), $4 ids to leave out (array),
--   $5 row limit
/* leasehold:find expired webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): (select $n)
select id::text as id from leasehold.webhook_outbox
where bucket = $1::smallint and (delivery_status = 'pending' and lease_owner is not null) and lease_until <= now()
  and (lease_until > now() - (select $2::float8)
    * interval '1 millisecond'  -- for this time it is left to a living owner
    and lease_owner = any ((select $3::text[])::text[])) is not true
  and id <> all ((select $4::bigint[])::bigint[])
limit (select $5::int)
