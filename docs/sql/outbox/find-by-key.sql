-- $1 excluded1, $2 suspects, $3 bucket, $4 limit, $5 cursor1, $6 cursor2, $7 overlapMs, $8 steps, $9 rows
/* leasehold:find by key outbox */
-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md
with queued as not materialized (         -- the unfinished rows of ordering keys
  select id, ordering_key, expiries >= 2 as suspect, available_at as row_due_at,
    coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes,
    ((status = 'PENDING') and available_at <= now()
      and coalesce(claimed_by is null or locked_until is null, true)
      and id <> all ((select $1::bigint[])::bigint[]) and (not expiries >= 2 or $2::int > 0)) is true as claimable,
    (select f.id from leasehold.outbox as f
      where f.bucket = $3::smallint and f.ordering_key = t.ordering_key and (status = 'CLAIMED') and f.id <> t.id limit 1) is null as key_is_free
  from leasehold.outbox as t
  where bucket = $3::smallint and ordering_key is not null and (status = 'PENDING' or parked)
),
scan as materialized (                -- how many rows to read: several may be of one key, or of a key that waits
  select case when $9::int > 0 then $9::int when room > 0 then least($8::int, 2 * room + 50) else 0 end as rows
  from (select $4::int as room) as free
),
arrived as materialized (           -- the next rows that are due, first of their key or not
  select available_at, id, ordering_key
  from leasehold.outbox
  where bucket = $3::smallint and ordering_key is not null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true)
    and (available_at, id) >= ((select least($5::timestamp with time zone, now() - $7::float8 * interval '1 millisecond')), (select case when $5::timestamp with time zone <= now() - $7::float8 * interval '1 millisecond' then $6::bigint else '-9223372036854775808' end))
  order by available_at, id
  limit (select rows from scan)
),
keys as materialized (              -- their keys, and where each was met first
  select distinct on (ordering_key) ordering_key, available_at as met1, id as met2
  from arrived order by ordering_key, available_at, id
)
select id::text as id, suspect
from keys cross join lateral (
  select id, ordering_key, suspect, row_due_at, bytes, claimable and key_is_free as ready
    from queued where queued.ordering_key >= keys.ordering_key and queued.ordering_key <= keys.ordering_key order by ordering_key, id limit 1
) as head
where head.ready
order by id
limit (select $4::int)
