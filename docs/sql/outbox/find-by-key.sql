-- $1 excluded1, $2 suspects, $3 bucket, $4 limit, $5 freed1, $6 cursor1, $7 cursor2, $8 overlapMs, $9 steps, $10 rows
/* leasehold:find by key outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with queued as not materialized (         -- the unfinished rows of ordering keys
  select id, ordering_key, expiries >= 2 as suspect,
    case when expiries < 2 then 0 when expiries > 2 or attempts >= max_attempts - 1 then 1000000 else 1 end as load,
    available_at as row_due_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
    ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)
      and id <> all ((select $1::bigint[])::bigint[]) and (not expiries >= 2 or $2::int > 0)) is true as claimable,
    (select f.id from leasehold.outbox as f
      where f.bucket = $3::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id limit 1) is null as key_is_free
  from leasehold.outbox as t
  where bucket = $3::smallint and ordering_key is not null and (status = 'PENDING' or parked)
),
scan as materialized (                -- how many rows to read: several may be of one key, or of a key that waits
  select case when $10::int > 0 then $10::int when room > 0 then least($9::int, 2 * room + 50) else 0 end as rows
  from (select $4::int as room) as free
),
arrived as materialized (           -- the next rows that are due, first of their key or not
  select available_at, id, ordering_key
  from leasehold.outbox
  where bucket = $3::smallint and ordering_key is not null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true)
    and (available_at, id) >= ((select least($6::timestamp with time zone, now() - $8::float8 * interval '1 millisecond')), (select case when $6::timestamp with time zone <= now() - $8::float8 * interval '1 millisecond' then $7::bigint else '-9223372036854775808' end))
  order by available_at, id
  limit (select rows from scan)
),
keys as materialized (              -- their keys, where each was met first, and the keys that were freed
  select distinct on (ordering_key) ordering_key, available_at as met1, id as met2, is_freed
  from (
    select available_at, id, ordering_key, false as is_freed from arrived
    union all
    select available_at, id, ordering_key, true from leasehold.outbox where bucket = $3::smallint and id = any (array(select unnest($5::bigint[]))) and ordering_key is not null
  ) as found
  order by ordering_key, is_freed desc, available_at, id
)
select id::text as id, suspect
from keys cross join lateral (
  select id, ordering_key, suspect, load, row_due_at, bytes, claimable and key_is_free as ready
    from queued where queued.ordering_key >= keys.ordering_key and queued.ordering_key <= keys.ordering_key order by ordering_key, id limit 1
) as head
where head.ready
order by id
limit (select $4::int)
