-- $1 groups, $2 rooms, $3 groupCursors, $4 limit, $5 bucket, $6 excluded1, $7 suspects, $8 steps
/* leasehold:find by group webhook_outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with recursive groups as materialized (
  select * from unnest((select $1::uuid[]), (select $2::int[]), (select $3::text[]))
    as groups (name, room, key_cursor)
),
next as materialized (
  select row.id, row.next_attempt_at, row.endpoint_id, row.suspect, row.load, row.bytes, groups.room
  from groups cross join lateral (
    select endpoint_id, id, next_attempt_at, coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= 9 then 1000000 else 1 end as load
    from leasehold.webhook_outbox
    where bucket = $5::smallint and endpoint_id = groups.name and ordering_key is null and expiries < 2
      and (delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)
      and id <> all ((select $6::bigint[])::bigint[])
    order by next_attempt_at, id limit least(groups.room, $4::int)
    for update skip locked
  ) as row
),
suspect as materialized (          -- as many as the process has room for
  select row.id, row.next_attempt_at, row.endpoint_id, row.suspect, row.load, row.bytes, groups.room
  from groups cross join lateral (
    select endpoint_id, id, next_attempt_at, coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= 9 then 1000000 else 1 end as load
    from leasehold.webhook_outbox
    where bucket = $5::smallint and endpoint_id = groups.name and ordering_key is null and expiries >= 2
      and (delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)
      and id <> all ((select $6::bigint[])::bigint[])
    order by next_attempt_at, id limit least(groups.room, $7::int)
    for update skip locked
  ) as row
  limit (select $7::int)
),
queued as not materialized (         -- the unfinished rows of ordering keys
  select id, ordering_key, endpoint_id, next_attempt_at, expiries >= 2 as suspect,
    case when expiries < 2 then 0 when expiries > 2 or attempts >= 9 then 1000000 else 1 end as load,
    next_attempt_at as row_due_at, coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes,
    ((delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)
      and id <> all ((select $6::bigint[])::bigint[]) and (not expiries >= 2 or $7::int > 0)) is true as claimable,
    (select f.id from leasehold.webhook_outbox as f
      where f.bucket = $5::smallint and f.endpoint_id = t.endpoint_id and f.ordering_key = t.ordering_key
        and (delivery_status = 'pending' and lease_owner is not null) and f.id <> t.id limit 1) is null as key_is_free
  from leasehold.webhook_outbox as t
  where bucket = $5::smallint and ordering_key is not null and (delivery_status = 'pending')
),
walk as (
  select head.*, groups.room, 1 as step, head.ready::int as found
  from groups cross join lateral (  -- the first key from the cursor on
    select id, ordering_key, endpoint_id, next_attempt_at, suspect, load, row_due_at, bytes, claimable and key_is_free as ready
    from queued where endpoint_id = groups.name and ordering_key >= groups.key_cursor order by ordering_key, id limit 1
  ) as head
  union all
  select head.*, walk.room, walk.step + 1, walk.found + head.ready::int
  from walk cross join lateral (    -- the next key
    select id, ordering_key, endpoint_id, next_attempt_at, suspect, load, row_due_at, bytes, claimable and key_is_free as ready
    from queued where queued.endpoint_id = walk.endpoint_id and queued.ordering_key > walk.ordering_key order by ordering_key, id limit 1
  ) as head
  where walk.step < $8::int and walk.found < walk.room
),
found as (
  select * from next
  union all select * from suspect
  union all select walk.id, walk.next_attempt_at, walk.endpoint_id, walk.suspect, walk.load, walk.bytes, room from walk where ready
)
select id::text as id, suspect
from found
limit (select $4::int)
