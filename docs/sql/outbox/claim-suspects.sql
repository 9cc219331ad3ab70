-- Claims suspects: rows of which at least two leases have ended, since the last retry, because the worker process died.
-- Parameters: $1 bucket, $2 also those that must run alone, $3 ids to leave out (array), $4 row limit, $5 owner,
--   $6 lease in ms
/* leasehold:claim suspects outbox */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n), any (array(select …))
with next as materialized (  -- the next suspects that are due
  select t.id from leasehold.outbox as t
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
  order by t.available_at, t.id limit (select $4::int) for update skip locked
)
update leasehold.outbox as t
set locked_until = now() + $6::float8 * interval '1 millisecond', claimed_by = $5::text,
  -- the first token of a row is the time, each later one is one higher
  lock_token = (select coalesce(nullif(t.lock_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1),
  status = 'CLAIMED', claimed_at = now()
where t.bucket = $1::smallint and t.id = any (array(select id from next))
returning t.lock_token, date_part('epoch', t.locked_until) * 1000,
  coalesce(pg_column_size(payload) + pg_column_size(headers), 0), (t.available_at at time zone 'utc')::text, t.id,
  t.event_id, t.event_type, t.ordering_key, t.payload, t.headers, t.attempts, t.max_attempts, t.created_at
