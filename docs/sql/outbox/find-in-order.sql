-- $1 limit, $2 bucket, $3 cursor1, $4 cursor2, $5 excluded1, $6 suspects
/* leasehold:find in order outbox */
with next as materialized (
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes, false as suspect, 0 as load
  from leasehold.outbox
  where bucket = $2::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries < 2
    and (available_at, id) >= ((select $3::timestamp with time zone), (select $4::bigint))
    and id <> all ((select $5::bigint[])::bigint[])
  order by available_at, id
  limit (select $1::int)
  for update skip locked
),
suspect as materialized (          -- as many as the process has room for
  select id, available_at, coalesce(pg_column_size(payload) + pg_column_size(headers), 0) as bytes, true as suspect, case when expiries < 2 then 0 when expiries > 2 or attempts >= max_attempts - 1 then 1000000 else 1 end as load
  from leasehold.outbox
  where bucket = $2::smallint and ordering_key is null and (status = 'PENDING') and available_at <= now()
    and coalesce(claimed_by is null or locked_until is null, true) and expiries >= 2
    and id <> all ((select $5::bigint[])::bigint[])
  order by available_at, id
  limit (select $6::int)
  for update skip locked
)
select id::text as id, suspect from next
union all select id::text, suspect from suspect
