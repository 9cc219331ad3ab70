/** Retention of deliveries: they are deleted some time after they were delivered or have failed, by the clock of the database (D11). */
import {
  type BatchPacing,
  DAY_MS,
  deleteAlongFinishTime,
  deleteAlongIds,
  type RetentionCall,
  startRetention,
} from '../../admin/retention.ts'
import { ownBuckets } from '../../lease/backlog.ts'
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
  const { deliveredMs = 7 * DAY_MS, failedMs = 90 * DAY_MS } = options
  const run = startRetention(options, { deliveredMs, failedMs })
  const table = deliveriesOf(run.schema)
  const delivered = { table, finished: "delivery_status = 'delivered'", finishedAt: 'delivered_at' }
  const failed = { table, finished: "delivery_status = 'failed'", finishedAt: 'failed_at' }
  const deleted = { delivered: 0, failed: 0 }
  for (const bucket of await ownBuckets(db, run.schema)) {
    if (deliveredMs !== null)
      deleted.delivered += await deleteAlongIds(db, run, delivered, bucket, deliveredMs)
    if (failedMs !== null) deleted.failed += await deleteAlongFinishTime(db, run, failed, bucket, failedMs)
  }
  return deleted
}
