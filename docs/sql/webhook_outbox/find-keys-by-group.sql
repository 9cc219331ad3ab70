-- Returns the ids of the rows that `claim keys by group` would take. Sent after a data error has stopped that claim.
-- Parameters: $1 ids to leave out (array), $2 groups (array), $3 row limit of each group (array),
--   $4 key to start at in each group (array), $5 bucket, $6 key limit of each group, $7 row limit
/* leasehold:find keys by group webhook_outbox */
-- For a stable plan (docs/decisions/002-plans.md): is true, coalesce(…, true), (select $n)
with recursive groups as materialized (
  select * from unnest((select $2::uuid[]), (select $3::int[]), (select $4::text[])) as groups (name, room, key_cursor)
),
walk as (  -- the first unfinished row of each key, and whether it is ready to be claimed
  select head.*, groups.room, 1 as step, head.ready::int as found
  from groups cross join lateral (  -- the first key from the cursor on
    select o.id, o.endpoint_id, o.ordering_key, next_attempt_at as row_due_at,
      ((delivery_status = 'pending') and next_attempt_at <= now()
        and coalesce(lease_owner is null or lease_until is null, true) and expiries < 2
        and id <> all ((select $1::bigint[])::bigint[])) is true
        and (select f.id from leasehold.webhook_outbox as f
          where f.bucket = $5::smallint and f.endpoint_id = o.endpoint_id and f.ordering_key = o.ordering_key
            and (delivery_status = 'pending' and lease_owner is not null) and f.id <> o.id limit 1) is null as ready
    from leasehold.webhook_outbox as o
    where o.bucket = $5::smallint and o.ordering_key is not null and (delivery_status = 'pending')
      and o.endpoint_id = groups.name and o.ordering_key >= groups.key_cursor
    order by o.endpoint_id, o.ordering_key, o.id limit 1
  ) as head
  union all
  select head.*, walk.room, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (  -- the next key
    select o.id, o.endpoint_id, o.ordering_key, next_attempt_at as row_due_at,
      ((delivery_status = 'pending') and next_attempt_at <= now()
        and coalesce(lease_owner is null or lease_until is null, true) and expiries < 2
        and id <> all ((select $1::bigint[])::bigint[])) is true
        and (select f.id from leasehold.webhook_outbox as f
          where f.bucket = $5::smallint and f.endpoint_id = o.endpoint_id and f.ordering_key = o.ordering_key
            and (delivery_status = 'pending' and lease_owner is not null) and f.id <> o.id limit 1) is null as ready
    from leasehold.webhook_outbox as o
    where o.bucket = $5::smallint and o.ordering_key is not null and (delivery_status = 'pending')
      and o.endpoint_id = walk.endpoint_id and o.ordering_key > walk.ordering_key
    order by o.endpoint_id, o.ordering_key, o.id limit 1
  ) as head
  where walk.step < $6::int and walk.found < walk.room
)
select id::text from walk where ready order by walk.id limit (select $7::int)
