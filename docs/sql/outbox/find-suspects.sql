-- Returns the ids of the rows that `claim suspects` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 bucket, $2 also those that must run alone, $3 ids to leave out (array), $4 row limit
/* leasehold:find suspects outbox */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n)
select t.id::text from leasehold.outbox as t
where t.bucket = $1::smallint and (status = 'PENDING') and available_at <= now()
  and coalesce(claimed_by is null or locked_until is null, true) and expiries >= 2
  and ((select $2::boolean)  -- false: none that must run alone (more than 2 expiries, or the last attempt)
    or (expiries > 2 or attempts >= max_attempts - 1) is not true)
  and (t.ordering_key is null or (  -- or the first unfinished row of its key, of which no other row is leased
      (select h.id from leasehold.outbox as h
        where h.bucket = $1::smallint and (status = 'PENDING' or parked)
          and h.ordering_key >= t.ordering_key and h.ordering_key <= t.ordering_key
        order by h.ordering_key, h.id limit 1) = t.id
      and (select f.id from leasehold.outbox as f
        where f.bucket = $1::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id
        limit 1) is null))
  and t.id <> all ((select $3::bigint[])::bigint[])
order by t.available_at, t.id limit (select $4::int)
