/** The bulk changes that the API offers, by the names of their actions in the audit. */
import type { BulkChange, RowFilter } from '../../operations/bulk-change.ts'
import { GIVE_UP as giveUpEvents } from '../../outbox/admin/give-up.ts'
import { REPLAY as replayEvents } from '../../outbox/admin/replay.ts'
import { RETRY_NOW as retryEvents } from '../../outbox/admin/retry-now.ts'
import { CANCEL as cancelJobs } from '../../sync/admin/cancel.ts'
import { REPLAY as replayJobs } from '../../sync/admin/replay.ts'
import { CANCEL as cancelDeliveries } from '../../webhooks/admin/cancel.ts'
import { REPLAY as replayDeliveries } from '../../webhooks/admin/replay.ts'
import { RETRY_NOW as retryDeliveries } from '../../webhooks/admin/retry-now.ts'

/** A declaration whose filter has been validated for it. */
export type AnyBulkChange = BulkChange<RowFilter, string>

const DECLARATIONS = [
  replayEvents,
  retryEvents,
  giveUpEvents,
  replayDeliveries,
  retryDeliveries,
  cancelDeliveries,
  cancelJobs,
  replayJobs,
]

const BY_ACTION: ReadonlyMap<string, AnyBulkChange> = new Map(
  // Each has a filter type of its own. The route that names the action validates the filter.
  DECLARATIONS.map((declaration) => [declaration.action, declaration as unknown as AnyBulkChange]),
)

export function bulkChange(action: string): AnyBulkChange | undefined {
  return BY_ACTION.get(action)
}
