import { bucketsIn } from '../../operator/buckets.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { type Queryable } from '../../postgres/queryable.ts'

/** The outbox of a schema, as statements name it. */
export function outboxOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'outbox')
}

export async function bucketsOf(db: Queryable, schema: string | undefined): Promise<number[]> {
  return bucketsIn(db, outboxOf(schema))
}
