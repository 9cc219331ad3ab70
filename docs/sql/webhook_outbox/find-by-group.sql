-- Returns the ids of the rows that `claim by group` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 bucket, $2 ids to leave out (array), $3 groups (array), $4 row limit of each group (array),
--   $5 row limit
/* leasehold:find by group webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n)
select id::text from (
  select row.*
  from unnest((select $3::uuid[]), (select $4::int[])) as groups (name, room) cross join lateral (
    select id, next_attempt_at from leasehold.webhook_outbox
    where bucket = $1::smallint and endpoint_id = groups.name and ordering_key is null and (delivery_status = 'pending')
      and next_attempt_at <= now() and coalesce(lease_owner is null or lease_until is null, true) and expiries < 2
      and id <> all ((select $2::bigint[])::bigint[])
    order by next_attempt_at, id limit least(groups.room, $5::int)
  ) as row
) as next
order by next.next_attempt_at, next.id limit (select $5::int)
