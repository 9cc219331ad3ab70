/**
 * Retry now: pending events that wait for a later time are due at once.
 *
 * - Chosen by a filter: events at which an attempt has failed, and which wait for the next one. An event that a producer
 *   wrote for a later time is due earlier only if it is named by its id.
 * - Only the time changes. The attempts are not reset, so after another failure the delay is as long as it would have been.
 * - What is in flight or finished is left alone; a replay brings back finished events.
 * - Of an ordering key the head alone can be claimed: later events of the key wait for it as before.
 */
import {
  type BulkChange,
  type BulkChangeOptions,
  type BulkChangeResult,
  resumeBulkChange,
  type ResumeOptions,
  runBulkChange,
} from '../../operations/bulk-change.ts'
import { invalid } from '../../operations/request-checks.ts'
import type { Database } from '../../postgres/database.ts'
import { STATUSES } from '../transitions.ts'
import { findNamed } from './browse.ts'
import { checkFilter, type EventFilter, FILTER_DATES, filterSql, narrowSql, statusesOf } from './filter.ts'

export type RetryNowOptions = BulkChangeOptions<EventFilter>
export type RetryNowResult = BulkChangeResult

/**
 * What a change of pending events declares alike. A filter means events at which an attempt has failed; an id means any
 * pending event.
 */
export function pendingEvents(
  onlyThese: string,
): Pick<
  BulkChange<EventFilter>,
  'row' | 'rows' | 'table' | 'bucketed' | 'checkFilter' | 'dates' | 'scans' | 'counts' | 'wakes'
> {
  return {
    row: 'event',
    rows: 'events',
    table: 'outbox',
    bucketed: true,
    checkFilter(filter) {
      checkFilter(filter)
      const other =
        filter.status === undefined ? undefined : statusesOf(filter).find((status) => status !== 'PENDING')
      if (other !== undefined) throw invalid('status', other, onlyThese)
    },
    dates: FILTER_DATES,
    scans: () => [
      {
        // Every row counts, whatever its status, because only then is the scan bounded.
        narrow: (filter, parameter) => narrowSql(filter, STATUSES, parameter),
        where: (filter, parameter) =>
          `${filterSql(filter, ['PENDING'], parameter)}${filter.ids === undefined ? ' and attempts > 0' : ''}`,
      },
    ],
    counts: () => ({}),
    wakes: ['outbox'],
  }
}

export const RETRY_NOW: BulkChange<EventFilter> = {
  ...pendingEvents('Only PENDING events wait for their next attempt.'),
  action: 'outbox.retry',
  guard: () => "status = 'PENDING' and available_at > now()",
  set: () => 'available_at = now()',
  findNamed: async (db, schema, { ids }) =>
    findNamed(db, schema, ids, ({ id, status, claimedBy, availableAt }, now) => {
      if (status === 'CLAIMED') return `it is in flight: ${claimedBy} publishes it at this moment`
      if (status !== 'PENDING') return `it is ${status}; a replay publishes it once more`
      if (availableAt > now) return undefined
      return `it is due already; \`leasehold outbox show ${id}\` shows what it waits for`
    }),
}

/** Makes pending events due at once, by their ids or by a filter. */
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
