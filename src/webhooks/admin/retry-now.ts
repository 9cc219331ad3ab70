/**
 * Retry now: pending deliveries that wait for a later time are due at once.
 *
 * - Chosen by a filter: deliveries at which an attempt has failed, and which wait for the next one. A delivery that was
 *   sent for a later time is due earlier only if it is named by its id, or by its event id.
 * - Only the time changes. The attempts are not reset, so the schedule continues after another failure.
 * - What is in flight or finished is left alone; a replay brings back finished deliveries.
 * - While the circuit of an endpoint is open, or the endpoint is disabled, its deliveries still wait. Of an ordering key,
 *   only the head can be claimed.
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
  endpointsOf,
  FILTER_DATES,
  filterSql,
  narrowSql,
  NOT_IN_FLIGHT,
  requirePending,
} from './filter.ts'

export type RetryNowOptions = BulkChangeOptions<DeliveryFilter>

/** `endpointDisabled`, `circuitOpen`: how many of the deliveries wait until their endpoint is enabled, or for its next probe. */
export type RetryNowResult = BulkChangeResult<RetryNowCount>

type RetryNowCount = 'endpointDisabled' | 'circuitOpen'

const CAN_BE_RETRIED = `delivery_status = 'pending' and ${NOT_IN_FLIGHT} and next_attempt_at > now()`

export const RETRY_NOW: BulkChange<DeliveryFilter, RetryNowCount> = {
  action: 'webhooks.retry',
  row: 'delivery',
  rows: 'deliveries',
  table: 'webhook_outbox',
  bucketed: true,
  checkFilter: (filter) => requirePending(filter, 'Only pending deliveries wait for their next attempt.'),
  dates: FILTER_DATES,
  scans: () => [
    {
      // Every row counts, whatever its status, because only then is the scan bounded.
      narrow: ({ ids }, parameter) => narrowSql({ ids }, DELIVERY_STATUSES, parameter),
      where: (filter, parameter, schema) =>
        `${filterSql(filter, ['pending'], parameter, schema)}${filter.ids === undefined ? ' and attempts > 0' : ''}`,
    },
  ],
  guard: () => CAN_BE_RETRIED,
  counts: (schema) => ({
    endpointDisabled: countAt(schema, 'not e.enabled'),
    circuitOpen: countAt(schema, 'e.enabled and e.open_until > now()'),
  }),
  set: () => 'next_attempt_at = now()',
  target: ({ endpoint }) => endpoint,
  wakes: ['webhooks'],
  findNamed: async (db, schema, { ids }) =>
    findNamed(db, schema, ids, (delivery, now) => {
      const { id, status, nextAttemptAt } = delivery
      if (status !== 'pending') return `it is ${status}; a replay sends it once more`
      const inFlight = whyInFlight(delivery, now)
      if (inFlight !== undefined || nextAttemptAt > now) return inFlight
      return `it is due already; \`leasehold webhooks show ${id}\` and \`leasehold status\` show what it waits for`
    }),
}

/** Of the deliveries that can be retried, those to endpoints of this kind. */
function countAt(schema: string, endpoints: string): string {
  return `count(*) filter (where ${CAN_BE_RETRIED}
    and endpoint_id in (select e.id from ${endpointsOf(schema)} as e where ${endpoints}))`
}

/** Makes pending deliveries due at once, by their ids or by a filter. */
export async function retryNow(db: Database, options: RetryNowOptions): Promise<RetryNowResult> {
  return runBulkChange(db, RETRY_NOW, options)
}

/** Continues a `retryNow` that was stopped or killed. */
export async function resumeRetryNow(
  db: Database,
  changeId: string,
  options: ResumeOptions,
): Promise<RetryNowResult> {
  return resumeBulkChange(db, RETRY_NOW, changeId, options)
}
