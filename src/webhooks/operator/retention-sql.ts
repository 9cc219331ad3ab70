/** The statements that remove what is finished. The attempts at a delivery go with it. */
import { deliveriesOf } from './tables.ts'

/**
 * A delivery is delivered after it was sent, so where all were sent too recently nothing can be removed, and behind them
 * even less. Rows are removed by their primary key, from an array: no estimate can turn that into reading the table.
 */
export function removeDelivered(schema: string): string {
  const table = deliveriesOf(schema)
  const limit = "now() - $3::float8 * interval '1 millisecond'"
  const expired = `delivery_status = 'delivered' and delivered_at < ${limit}`
  return `with looked as materialized (
  select id, created_at, (${expired}) as expired
  from ${table}
  where bucket = $1::smallint and id > $2::bigint
  order by id limit $4::int
),
locked as materialized (
  select id from ${table}
  where bucket = $1::smallint and id = any (array(select id from looked where expired)) and ${expired}
  for update skip locked
),
removed as (
  delete from ${table}
  where bucket = $1::smallint and id = any (array(select id from locked))
  returning 1
)
select (select count(*) from removed)::int as removed, max(id)::text as "lookedTo",
  coalesce(bool_or(created_at < ${limit}), false) as old
from looked`
}

/** From the one that failed first on, along their index. */
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
