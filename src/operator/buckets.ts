import type { Queryable } from '../postgres/queryable.ts'

/**
 * The buckets that have rows. Operators look at all of them, one statement for each, so that where the table is
 * distributed a statement concerns one shard. Jumps from one to the next along the primary key.
 */
export async function bucketsIn(db: Queryable, table: string): Promise<number[]> {
  const { rows } = await db.query<{ bucket: number }>({
    text: `with recursive found as (
  (select bucket from ${table} order by bucket limit 1)
  union all
  select (select o.bucket from ${table} as o where o.bucket > found.bucket order by o.bucket limit 1)
  from found where found.bucket is not null
)
select bucket from found where bucket is not null`,
  })
  return rows.map(({ bucket }) => bucket)
}

/** Smaller than every id. */
export const BEFORE_FIRST = '-9223372036854775808'
