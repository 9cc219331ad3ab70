/**
 * Cancel: pending deliveries fail without another attempt. Their error code is `cancelled`, and a replay brings them back.
 *
 * - What is in flight is not cancelled, and counted: its request may have arrived already.
 * - The next delivery of the ordering key of a cancelled one becomes the head.
 * - No attempt is added to the history.
 */
import {
  type BulkChange,
  type BulkChangeOptions,
  type BulkChangeResult,
  resumeBulkChange,
  type ResumeOptions,
  runBulkChange,
} from '../../operations/bulk-change.ts'
import type { Database } from '../../postgres/database.ts'
import { DELIVERY_STATUSES } from '../transitions.ts'
import { findNamed, whyInFlight } from './browse.ts'
import {
  type DeliveryFilter,
  FILTER_DATES,
  filterSql,
  narrowSql,
  NOT_IN_FLIGHT,
  requirePending,
} from './filter.ts'

export type CancelOptions = BulkChangeOptions<DeliveryFilter>

/** `inFlight`: how many more match and are not cancelled because they are in flight. */
export type CancelResult = BulkChangeResult<'inFlight'>

export const CANCEL: BulkChange<DeliveryFilter, 'inFlight'> = {
  action: 'webhooks.cancel',
  row: 'delivery',
  rows: 'deliveries',
  table: 'webhook_outbox',
  bucketed: true,
  checkFilter: (filter) => requirePending(filter, 'Only pending deliveries can be cancelled.'),
  dates: FILTER_DATES,
  scans: () => [
    {
      // Every row counts, whatever its status, because only then is the scan bounded.
      narrow: ({ ids }, parameter) => narrowSql({ ids }, DELIVERY_STATUSES, parameter),
      where: (filter, parameter, schema) => filterSql(filter, ['pending'], parameter, schema),
    },
  ],
  guard: () => `delivery_status = 'pending' and ${NOT_IN_FLIGHT}`,
  counts: () => ({ inFlight: `count(*) filter (where not ${NOT_IN_FLIGHT})` }),
  set: (
    { principal, reason },
    parameter,
  ) => `delivery_status = 'failed', failed_at = now(), lease_owner = null,
    lease_until = null, last_error_code = 'cancelled',
    last_error = ${parameter(`cancelled by ${principal}: ${reason}`, 'text')}`,
  target: ({ endpoint }) => endpoint,
  // The next deliveries of their ordering keys may be due.
  wakes: ['webhooks'],
  findNamed: async (db, schema, { ids }) =>
    findNamed(db, schema, ids, (delivery, now) =>
      delivery.status === 'pending' ? whyInFlight(delivery, now) : `it is ${delivery.status} already`,
    ),
}

/** Cancels pending deliveries by their ids or by a filter. */
export async function cancel(db: Database, options: CancelOptions): Promise<CancelResult> {
  return runBulkChange(db, CANCEL, options)
}

/** Continues a cancel that was stopped or killed. */
export async function resumeCancel(
  db: Database,
  changeId: string,
  options: ResumeOptions,
): Promise<CancelResult> {
  return resumeBulkChange(db, CANCEL, changeId, options)
}
