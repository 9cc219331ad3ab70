/** The tables of a schema, as statements name them. */
import { bucketsIn } from '../../admin/buckets.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'

export function deliveriesOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'webhook_outbox')
}

export function endpointsOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'webhook_endpoints')
}

export function attemptsOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'webhook_attempts')
}

export async function bucketsOf(db: Queryable, schema: string | undefined): Promise<number[]> {
  return bucketsIn(db, deliveriesOf(schema))
}
