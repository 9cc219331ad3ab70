import { bucketsIn } from '../../admin/buckets.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'

/** The outbox of a schema, as statements name it. */
export function outboxOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'outbox')
}

export async function bucketsOf(db: Queryable, schema: string | undefined): Promise<number[]> {
  return bucketsIn(db, outboxOf(schema))
}

/** The events of an ordering key that later ones wait for, in the words of the index `outbox_keys`. */
export const UNFINISHED = "ordering_key is not null and (status in ('PENDING', 'CLAIMED') or parked)"
