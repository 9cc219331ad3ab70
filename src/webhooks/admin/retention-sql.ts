/** The statements that remove finished deliveries, by the time of their finishing and the clock of the database (D11). */
import { deliveriesOf } from './tables.ts'

/**
 * Scans along the ids. What is removed is decided by `delivered_at` alone; `created_at` only says where to stop, since a
 * delivery cannot be finished before it was sent: where all were sent too recently, later ids have nothing to remove
 * either. A `created_at` in the future is a mistake of somebody's and stops nothing. Rows are removed by their primary
 * key, from an array: no estimate can turn that into a scan of the table.
 */
export function removeDelivered(schema: string): string {
  const table = deliveriesOf(schema)
  const limit = "now() - $3::float8 * interval '1 millisecond'"
  const expired = `delivery_status = 'delivered' and delivered_at < ${limit}`
  return `with scanned as materialized (
  select id, created_at, (${expired}) as expired
  from ${table}
  where bucket = $1::smallint and id > $2::bigint
  order by id limit $4::int
),
locked as materialized (
  select id from ${table}
  where bucket = $1::smallint and id = any (array(select id from scanned where expired)) and ${expired}
  for update skip locked
),
removed as (
  delete from ${table}
  where bucket = $1::smallint and id = any (array(select id from locked))
  returning 1
)
select (select count(*) from removed)::int as removed, max(id)::text as "lookedTo",
  coalesce(bool_or(created_at < ${limit} or created_at > now()), false) as old
from scanned`
}

/** Along the index of failed deliveries, from the one that failed first. */
export function removeFailed(schema: string): string {
  const table = deliveriesOf(schema)
  return `with locked as materialized (
  select id from ${table}
  where bucket = $1::smallint and delivery_status = 'failed'
    and failed_at < now() - $2::float8 * interval '1 millisecond'
  order by failed_at, id limit $3::int
  for update skip locked
)
delete from ${table} where bucket = $1::smallint and id = any (array(select id from locked))`
}
