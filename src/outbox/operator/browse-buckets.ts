import { bucketsIn } from '../../operator/buckets.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'

/** The outbox of a schema, as statements name it. */
export function outboxOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'outbox')
}

/** The ids of events that may be in flight, as the claims have noted them: all that are, and some that were. */
export function notedIds(schema = 'leasehold', bucket?: string): string {
  const where = bucket === undefined ? '' : ` where bucket = ${bucket}`
  return `array(select unnest(rows) from ${quoteQualified(schema, 'outbox_claims')}${where})`
}

/** Bundles of events that may be claimed: of all that can be, and of some that could. */
export function bundlesOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'outbox_bundles')
}

export async function bucketsOf(db: Queryable, schema: string | undefined): Promise<number[]> {
  return bucketsIn(db, outboxOf(schema))
}
