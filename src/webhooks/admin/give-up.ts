/** Deliveries that are given up without another attempt. The next one of their ordering key becomes its head. */
import type { Queryable } from '../../postgres/queryable.ts'
import { deliveriesOf } from './tables.ts'

/** Nobody delivers it at this moment: a dispatcher whose lease has expired has stopped, and is fenced off. */
export const NOT_IN_FLIGHT = '(d.lease_owner is null or d.lease_until <= now())'

/** Why they are given up: a word for programs, a sentence for people. */
export interface Reason {
  readonly code: 'cancelled' | 'expired' | 'endpointDeleted'
  readonly error: string
}

/**
 * Gives up these, which the caller has locked and found pending and not in flight; returns how many. No attempt is added
 * to their history.
 */
export async function giveUp(
  tx: Queryable,
  which: { readonly schema: string; readonly bucket: number; readonly ids: readonly string[] },
  { code, error }: Reason,
): Promise<number> {
  const { schema, bucket, ids } = which
  if (ids.length === 0) return 0
  const { rowCount } = await tx.query({
    text: `update ${deliveriesOf(schema)} as d
set delivery_status = 'failed', failed_at = now(), lease_owner = null, lease_until = null,
  last_error_code = $3::text, last_error = $4::text
where d.bucket = $1::smallint and d.id = any ($2::bigint[]) and d.delivery_status = 'pending' and ${NOT_IN_FLIGHT}`,
    values: [bucket, ids, code, error],
  })
  return rowCount ?? 0
}
