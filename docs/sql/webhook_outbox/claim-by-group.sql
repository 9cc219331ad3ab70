-- $1 limit, $2 bytes, $3 suspects, $4 alone, $5 groups, $6 rooms, $7 groupCursors, $8 bucket, $9 excluded1, $10 steps, $11 owner, $12 leaseMs
/* leasehold:claim by group webhook_outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with recursive groups as materialized (
  select * from unnest((select $5::uuid[]), (select $6::int[]), (select $7::text[]))
    as groups (name, room, key_cursor)
),
next as materialized (
  select row.id, row.next_attempt_at, row.endpoint_id, row.suspect, row.load, row.bytes, groups.room
  from groups cross join lateral (
    select endpoint_id, id, next_attempt_at, coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= 9 then 1000000 else 1 end as load
    from leasehold.webhook_outbox
    where bucket = $8::smallint and endpoint_id = groups.name and ordering_key is null and expiries < 2
      and (delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)
      and id <> all ((select $9::bigint[])::bigint[])
    order by next_attempt_at, id limit least(groups.room, $1::int)
    for update skip locked
  ) as row
),
suspect as materialized (          -- as many as the process has room for
  select row.id, row.next_attempt_at, row.endpoint_id, row.suspect, row.load, row.bytes, groups.room
  from groups cross join lateral (
    select endpoint_id, id, next_attempt_at, coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= 9 then 1000000 else 1 end as load
    from leasehold.webhook_outbox
    where bucket = $8::smallint and endpoint_id = groups.name and ordering_key is null and expiries >= 2
      and (delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)
      and id <> all ((select $9::bigint[])::bigint[])
    order by next_attempt_at, id limit least(groups.room, $3::int)
    for update skip locked
  ) as row
  limit (select $3::int)
),
queued as not materialized (         -- the unfinished rows of ordering keys
  select id, ordering_key, endpoint_id, next_attempt_at, expiries >= 2 as suspect,
    case when expiries < 2 then 0 when expiries > 2 or attempts >= 9 then 1000000 else 1 end as load,
    next_attempt_at as row_due_at, coalesce(octet_length(body) + pg_column_size(headers), 0) as bytes,
    ((delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)
      and id <> all ((select $9::bigint[])::bigint[]) and (not expiries >= 2 or $3::int > 0)) is true as claimable,
    (select f.id from leasehold.webhook_outbox as f
      where f.bucket = $8::smallint and f.endpoint_id = t.endpoint_id and f.ordering_key = t.ordering_key
        and (delivery_status = 'pending' and lease_owner is not null) and f.id <> t.id limit 1) is null as key_is_free
  from leasehold.webhook_outbox as t
  where bucket = $8::smallint and ordering_key is not null and (delivery_status = 'pending')
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
  where walk.step < $10::int and walk.found < walk.room
),
found as (
  select * from next
  union all select * from suspect
  union all select walk.id, walk.next_attempt_at, walk.endpoint_id, walk.suspect, walk.load, walk.bytes, room from walk where ready
),
chosen as materialized (
  select *
  from (
    select *, row_number() over (partition by endpoint_id order by next_attempt_at, id) as nth,
      row_number() over (order by next_attempt_at, id) as nth_of_all,
      sum(load) over (order by next_attempt_at, id rows unbounded preceding) as all_load, coalesce(sum(bytes) over (order by next_attempt_at, id rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from found
  ) as ranked
  where nth <= room and nth_of_all <= $1::int and (bytes_before = 0 or bytes_before + bytes <= $2::float8)
    and (load = 0 or all_load <= $3::int or ($4::boolean and all_load = load))
  order by next_attempt_at, id
),
taken as materialized (
  select t.id, expiries >= 2 as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= 9 then 1000000 else 1 end as load
  from leasehold.webhook_outbox as t
  where t.bucket = $8::smallint and t.id = any (array(select id from chosen))
    and ((delivery_status = 'pending') and next_attempt_at <= now()
      and coalesce(lease_owner is null or lease_until is null, true)) is true
  for update skip locked
),
claimed as (
  update leasehold.webhook_outbox as t
  set lease_until = now() + $12::float8 * interval '1 millisecond', lease_owner = $11::text,
    lease_token = (select coalesce(nullif(t.lease_token, 0), (extract(epoch from now()) * 1000000)::bigint) + 1)
  where t.bucket = $8::smallint and t.id = any (array(select id from taken))
  returning t.lease_token, t.id, t.event_id, t.endpoint_id, t.event_type, t.ordering_key, t.body, t.headers,
    t.attempts, t.created_at
)
select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  'until', extract(epoch from now() + $12::float8 * interval '1 millisecond') * 1000,
  'order', (select json_agg(id::text) from chosen),
  'more', (select count(*) from found) > (select count(*) from chosen),
  'dueInMs', (select extract(epoch from min(row_due_at) - now()) * 1000
     from (
      select least((select next_attempt_at from leasehold.webhook_outbox
        where bucket = $8::smallint and endpoint_id = groups.name and ordering_key is null
          and (delivery_status = 'pending') and expiries < 2 and next_attempt_at > now() order by next_attempt_at limit 1),
        (select next_attempt_at from leasehold.webhook_outbox
        where bucket = $8::smallint and endpoint_id = groups.name and ordering_key is null
          and (delivery_status = 'pending') and expiries >= 2 and next_attempt_at > now() order by next_attempt_at limit 1)) as row_due_at from groups
      union all select row_due_at from walk
    ) as due where row_due_at > now() and isfinite(row_due_at)),
  'bytes', (select sum(bytes) from chosen where ((id) in (select id from taken)) is true),
  'suspects', (select json_agg(id::text) from taken where load > 0),
  'alone', (select max(load) >= 1000000 from taken),
  'groupCursors', (select json_object_agg(endpoint_id, ordering_key::text)
    from walk where step >= $10::int or found >= room)
)) as facts full join claimed on false
