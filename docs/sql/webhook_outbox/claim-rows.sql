-- Claims the given rows, also suspects, as far as they can be claimed now; of an ordering key only the first unfinished
-- row.
-- Parameters: $1 ids (array), $2 bucket, $3 owner, $4 lease in ms
/* leasehold:claim rows webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), any (array(select …))
with wanted as materialized (  -- the planner takes any (array(select …)) for ten rows
  select * from unnest($1::bigint[]) as wanted (id)
),
taken as materialized (
  select t.id from leasehold.webhook_outbox as t
  where t.bucket = $2::smallint and t.id = any (array(select id from wanted))
    and ((delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)) is true
    and (t.ordering_key is null or (  -- or the first unfinished row of its key, of which no other row is leased
      (select h.id from leasehold.webhook_outbox as h
        where h.bucket = $2::smallint and h.endpoint_id = t.endpoint_id and (delivery_status = 'pending')
          and h.ordering_key >= t.ordering_key and h.ordering_key <= t.ordering_key
        order by h.ordering_key, h.id limit 1) = t.id
      and (select f.id from leasehold.webhook_outbox as f
        where f.bucket = $2::smallint and f.endpoint_id = t.endpoint_id and f.ordering_key = t.ordering_key
          and (delivery_status = 'pending' and lease_owner is not null) and f.id <> t.id limit 1) is null))
  for update skip locked
)
update leasehold.webhook_outbox as t
set lease_until = now() + $4::float8 * interval '1 millisecond', lease_owner = $3::text,
  -- the first token of a row is the time, each later one is one higher
  lease_token = (select coalesce(nullif(t.lease_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
where t.bucket = $2::smallint and t.id = any (array(select id from taken))
returning t.lease_token, date_part('epoch', t.lease_until) * 1000,
  coalesce(octet_length(body) + pg_column_size(headers), 0),
  (t.next_attempt_at at time zone 'utc')::text, t.id, t.event_id, t.endpoint_id, t.event_type, t.ordering_key, t.body,
  t.headers, t.attempts, t.created_at
