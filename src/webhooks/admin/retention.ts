/** Retention of deliveries: they are deleted some time after they were delivered or have failed, by the clock of the database (D11). */
import {
  type BatchPacing,
  DAY_MS,
  deleteAlongFinishTime,
  deleteAlongIds,
  type RetentionCall,
  retentionCursor,
  startRetention,
} from '../../operations/retention.ts'
import type { Database } from '../../postgres/database.ts'
import { deliveriesOf } from './filter.ts'

/** How long finished deliveries are retained, and in which batches they are deleted. */
export interface WebhookRetention extends BatchPacing {
  /** How long a delivery is retained after it was delivered. Null: for ever. Default 7 days. */
  readonly deliveredMs?: number | null | undefined
  /** How long a delivery is retained after it has failed. Null: for ever. Default 90 days. */
  readonly failedMs?: number | null | undefined
}

export interface WebhookRetentionOptions extends WebhookRetention, RetentionCall {}

export type Deleted = {
  /** How many delivered ones were deleted. */
  readonly delivered: number
  /** How many failed ones were deleted. */
  readonly failed: number
}

/** Deletes what is old enough now. */
export async function applyRetention(db: Database, options: WebhookRetentionOptions = {}): Promise<Deleted> {
  return repeatedRetention(options)(db, options.signal)
}

/** The retention of a process, which calls it again and again: a call goes on where the last one ended. */
export function repeatedRetention(
  options: Omit<WebhookRetentionOptions, 'signal'>,
): (db: Database, signal?: AbortSignal) => Promise<Deleted> {
  const { deliveredMs = 7 * DAY_MS, failedMs = 90 * DAY_MS } = options
  const cursor = retentionCursor()
  return async (db, signal) => {
    const run = startRetention({ ...options, signal }, { deliveredMs, failedMs })
    const table = deliveriesOf(run.schema)
    const delivered = { table, finished: "delivery_status = 'delivered'", finishedAt: 'delivered_at' }
    const failed = { table, finished: "delivery_status = 'failed'", finishedAt: 'failed_at' }
    return {
      delivered: deliveredMs === null ? 0 : await deleteAlongIds(db, run, delivered, deliveredMs, cursor),
      failed: failedMs === null ? 0 : await deleteAlongFinishTime(db, run, failed, failedMs),
    }
  }
}
