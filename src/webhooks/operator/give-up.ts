/** Deliveries that are given up without another attempt; those behind them in their lines go on. */
import { type LeaseStore, openLeaseStore } from '../../lease/store.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { webhookTable } from '../table.ts'
import { deliveriesOf } from './tables.ts'

/** Nobody delivers it at this moment. Whose lease has expired has stopped, and is fenced off. */
export const NOT_IN_FLIGHT = '(d.lease_owner is null or d.lease_until <= now())'

/** Why they are given up: a word for programs, a sentence for people. */
export interface Reason {
  readonly code: 'cancelled' | 'expired' | 'endpointDeleted'
  readonly error: string
}

export async function openLines(db: Database, schema: string, bucket: number): Promise<LeaseStore> {
  return openLeaseStore(db, webhookTable({ schema }), { owner: 'operator', bucket })
}

/**
 * Gives up these, which the caller has locked and found pending and not in flight; returns how many. The attempts that
 * were made are left as they are, and none is added.
 */
export async function giveUp(
  tx: Queryable,
  {
    schema,
    bucket,
    ids,
  }: { readonly schema: string; readonly bucket: number; readonly ids: readonly string[] },
  { code, error }: Reason,
  lines: LeaseStore,
): Promise<number> {
  const { rows } = await tx.query<{ line: string | null }>({
    text: `update ${deliveriesOf(schema)} as d
set delivery_status = 'failed', failed_at = now(), lease_owner = null, lease_until = null, behind = false,
  last_error_code = $3::text, last_error = $4::text
where d.bucket = $1::smallint and d.id = any ($2::bigint[]) and d.delivery_status = 'pending' and ${NOT_IN_FLIGHT}
returning line`,
    values: [bucket, ids, code, error],
  })
  const keys = [...new Set(rows.flatMap(({ line }) => (line === null ? [] : [line])))]
  if (keys.length > 0) await lines.advance({ keys, tx })
  return rows.length
}
