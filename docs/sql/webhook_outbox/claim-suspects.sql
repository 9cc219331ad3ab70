-- Claims suspects: rows of which at least two leases have ended, since the last retry, because the worker process died.
-- Parameters: $1 bucket, $2 also those that must run alone, $3 ids to leave out (array), $4 row limit,
--   $5 groups (array), $6 owner, $7 lease in ms
/* leasehold:claim suspects webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): coalesce(…, true), (select $n), any (array(select …))
with next as materialized (  -- the next suspects that are due
  select row.*
  from unnest((select $5::uuid[])) as groups (name)
  cross join lateral (
    select t.id from leasehold.webhook_outbox as t
    where t.bucket = $1::smallint and t.endpoint_id = groups.name and (delivery_status = 'pending')
      and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true) and expiries >= 2
      and ((select $2::boolean)  -- false: none that must run alone (more than 2 expiries, or the last attempt)
        or (expiries > 2 or attempts >= 9) is not true)
      and (t.ordering_key is null or (  -- or the first unfinished row of its key, of which no other row is leased
          (select h.id from leasehold.webhook_outbox as h
            where h.bucket = $1::smallint and h.endpoint_id = t.endpoint_id and (delivery_status = 'pending')
              and h.ordering_key >= t.ordering_key and h.ordering_key <= t.ordering_key
            order by h.ordering_key, h.id limit 1) = t.id
          and (select f.id from leasehold.webhook_outbox as f
            where f.bucket = $1::smallint and f.endpoint_id = t.endpoint_id and f.ordering_key = t.ordering_key
              and (delivery_status = 'pending' and lease_owner is not null) and f.id <> t.id limit 1) is null))
      and t.id <> all ((select $3::bigint[])::bigint[])
    order by t.next_attempt_at, t.id limit (select $4::int) for update skip locked
  ) as row
  limit (select $4::int)
)
update leasehold.webhook_outbox as t
set lease_until = now() + $7::float8 * interval '1 millisecond', lease_owner = $6::text,
  -- the first token of a row is the time, each later one is one higher
  lease_token = (select coalesce(nullif(t.lease_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
where t.bucket = $1::smallint and t.id = any (array(select id from next))
returning t.lease_token, date_part('epoch', t.lease_until) * 1000,
  coalesce(octet_length(body) + pg_column_size(headers), 0),
  (t.next_attempt_at at time zone 'utc')::text, t.id, t.event_id, t.endpoint_id, t.event_type, t.ordering_key, t.body,
  t.headers, t.attempts, t.created_at
