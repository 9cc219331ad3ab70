-- Returns the ids of the rows that `claim in order` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 bucket, $2 and $3 cursor, $4 ids to leave out (array), $5 row limit
/* leasehold:find in order outbox */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n)
select t.id::text from leasehold.outbox as t
where bucket = $1::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
  and coalesce(claimed_by is null or locked_until is null, true) and expiries < 2
  and (available_at, id) >= ((select $2::timestamp with time zone), (select $3::bigint))
  and id <> all ((select $4::bigint[])::bigint[])
order by t.available_at, t.id limit (select $5::int)
