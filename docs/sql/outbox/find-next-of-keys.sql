-- Returns the ids of the rows that `claim next of keys` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 ordering keys (array), $2 ids to leave out (array), $3 bucket, $4 row limit
/* leasehold:find next of keys outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), (select $n)
with heads as materialized (  -- the first unfinished row of each key, if it can be claimed and none is leased
  select head.*
  from unnest((select $1::text[])) as wanted (ordering_key) cross join lateral (
    select o.id, o.ordering_key,
      ((status = 'PENDING') and available_at <= now() and coalesce(claimed_by is null or locked_until is null, true)
        and expiries < 2 and id <> all ((select $2::bigint[])::bigint[])) is true as claimable
    from leasehold.outbox as o
    where o.bucket = $3::smallint and (status = 'PENDING' or parked)
      and o.ordering_key >= wanted.ordering_key and o.ordering_key <= wanted.ordering_key
    order by o.ordering_key, o.id limit 1  -- a range: with "=" the primary key has this order too
  ) as head
  where head.claimable and (select f.id from leasehold.outbox as f
      where f.bucket = $3::smallint and f.ordering_key = head.ordering_key and (status = 'CLAIMED') and f.id <> head.id
      limit 1) is null
)
select id::text from heads order by heads.id limit (select $4::int)
