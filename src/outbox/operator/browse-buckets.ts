import { quoteQualified } from '../../postgres/identifiers.ts'
import { type Queryable } from '../../postgres/queryable.ts'

/** The outbox of a schema, as statements name it. */
export function outboxOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'outbox')
}

/** The ids of events that may be in flight, as the claims have noted them: all that are, and some that were. */
export function notedIds(schema = 'leasehold', bucket?: string): string {
  const where = bucket === undefined ? '' : ` where bucket = ${bucket}`
  return `array(select unnest(rows) from ${quoteQualified(schema, 'outbox_claims')}${where})`
}

/**
 * The buckets that have events. Operators look at all of them, one statement for each, so that where the table is
 * distributed a statement concerns one shard. Jumps from one to the next along the primary key.
 */
export async function bucketsOf(db: Queryable, schema: string | undefined): Promise<number[]> {
  const outbox = outboxOf(schema)
  const { rows } = await db.query<{ bucket: number }>({
    text: `with recursive found as (
  (select bucket from ${outbox} order by bucket limit 1)
  union all
  select (select o.bucket from ${outbox} as o where o.bucket > found.bucket order by o.bucket limit 1)
  from found where found.bucket is not null
)
select bucket from found where bucket is not null`,
  })
  return rows.map(({ bucket }) => bucket)
}
