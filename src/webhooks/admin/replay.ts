/**
 * Replay: deliveries that have failed are attempted once more; on request, those that were delivered as well.
 *
 * - What is pending is left alone: it will be attempted anyway. So are deliveries whose endpoint was deleted; those of a
 *   disabled endpoint wait until it is enabled.
 * - Reset are the status, the attempts, the expiries and the last error. The history of attempts, `lease_token`,
 *   `event_id` and `created_at` are never changed: a dispatcher that still holds an earlier lease stays fenced off, and a
 *   receiver that has had the event recognises it.
 * - Deliveries of an ordering key go in the order of their ids. Until a replayed one is finished, later ones of its key
 *   wait for it, also when a rate delays it.
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
import type { DeliveryStatus } from '../transitions.ts'
import { findNamed } from './browse.ts'
import {
  checkFilter,
  type DeliveryFilter,
  endpointsOf,
  FILTER_DATES,
  filterSql,
  narrowSql,
  statusesOf,
} from './filter.ts'

export type ReplayOptions = BulkChangeOptions<DeliveryFilter>

/**
 * `endpointDisabled`: how many of the deliveries wait until their endpoint is enabled. `endpointDeleted`: how many more
 * would match if their endpoint had not been deleted.
 */
export type ReplayResult = BulkChangeResult<'endpointDisabled' | 'endpointDeleted'>

export const REPLAY: BulkChange<DeliveryFilter, 'endpointDisabled' | 'endpointDeleted'> = {
  action: 'webhooks.replay',
  row: 'delivery',
  rows: 'deliveries',
  table: 'webhook_outbox',
  bucketed: true,
  checkFilter(filter) {
    checkFilter(filter)
    if (!statusesToReplay(filter).includes('pending')) return
    const remedy = 'Only failed and delivered ones are replayed; pending ones will be attempted anyway.'
    throw invalid('status', 'pending', remedy)
  },
  dates: FILTER_DATES,
  scans: (filter) => [
    ...(statusesToReplay(filter).includes('failed') ? [FAILED] : []),
    ...(statusesToReplay(filter).includes('delivered') ? [DELIVERED] : []),
  ],
  guard: (schema) =>
    `delivery_status in ('failed', 'delivered') and endpoint_id in (select e.id from ${endpointsOf(schema)} as e)`,
  counts: (schema) => ({
    endpointDisabled: `count(*) filter (where endpoint_id in (select e.id from ${endpointsOf(schema)} as e where not e.enabled))`,
    endpointDeleted: `count(*) filter (where endpoint_id not in (select e.id from ${endpointsOf(schema)} as e))`,
  }),
  set: () => `delivery_status = 'pending', attempts = 0, expiries = 0, delivered_at = null, failed_at = null,
    last_error_code = null, last_error = null`,
  dueColumn: 'next_attempt_at',
  target: ({ endpoint }) => endpoint,
  wakes: ['webhooks'],
  findNamed: async (db, schema, filter) =>
    findNamed(db, schema, filter.ids, ({ status, endpointUrl }) => {
      if (status === 'pending')
        return 'it is pending, and will be attempted anyway; `leasehold webhooks retry` attempts it now'
      if (endpointUrl === null) return 'its endpoint was deleted'
      if (statusesToReplay(filter).includes(status)) return undefined
      return status === 'delivered'
        ? 'it was delivered; name the status delivered to send it once more'
        : `it is ${status}, and the filter names another status`
    }),
}

/** Along the index of failed deliveries, in the order in which they failed. */
const FAILED: ReturnType<typeof REPLAY.scans>[number] = {
  orderedBy: 'failed_at',
  narrow: ({ ids, failedSince }, parameter) => narrowSql({ ids, failedSince }, ['failed'], parameter),
  where: (filter, parameter, schema) => filterSql(filter, ['failed'], parameter, schema),
}

/** Along the ids: there every row counts, whatever its status, because only then is the scan bounded. */
const DELIVERED: ReturnType<typeof REPLAY.scans>[number] = {
  narrow: ({ ids }, parameter) => narrowSql({ ids }, statusesOf({}), parameter),
  where: (filter, parameter, schema) => filterSql(filter, ['delivered'], parameter, schema),
  finishedAt: 'delivered_at',
}

/** Replays deliveries by their ids or by a filter: those that have failed, unless the filter names another status. */
export async function replay(db: Database, options: ReplayOptions): Promise<ReplayResult> {
  return runBulkChange(db, REPLAY, options)
}

/** Continues a replay that was stopped or killed: the same deliveries at the same rate, for the same reason. */
export async function resumeReplay(
  db: Database,
  changeId: string,
  options: ResumeOptions,
): Promise<ReplayResult> {
  return resumeBulkChange(db, REPLAY, changeId, options)
}

function statusesToReplay(filter: DeliveryFilter): readonly DeliveryStatus[] {
  return filter.status === undefined ? ['failed'] : statusesOf(filter)
}
