/**
 * The outbox: write an event in the transaction that makes it true, and it is published.
 *
 * - **An event exists exactly if its transaction commits**, and is then published at least once. A consumer recognises a
 *   duplicate by its event id, and `once` gives it an effect that happens once.
 * - **A relay publishes events that it holds a lease on**, and settles them under the lease's token. A relay that was
 *   paused, disconnected or declared dead is fenced off: what it writes changes nothing.
 * - **Events of an ordering key are published one at a time, in the order in which they were written.** A blocked key
 *   does not delay other keys.
 * - **An event that has failed for good is dead.** It stays in the table until retention removes it, and only a replay,
 *   recorded with principal and reason, brings it back.
 */
export {
  createOutbox,
  enqueue,
  type Enqueue,
  type Enqueued,
  type EnqueueOptions,
  type Outbox,
  type OutboxOptions,
} from './enqueue/enqueue.ts'
export { HEADER, headersOf, type NewEvent, type OutboxEvent } from './event.ts'
export type { AnyPayloads, EventPayloads, StandardSchema } from '../messages/schemas.ts'
export {
  fromDrizzle,
  fromKnex,
  fromKysely,
  fromPg,
  fromPostgresJs,
  fromPrisma,
  fromQueryable,
  fromTypeOrm,
} from '../transactions/adapters.ts'
export type { Writer } from '../transactions/writer.ts'
export { forgetInbox, once, type Once } from './inbox.ts'
export { relay, type RelayOptions } from './relay.ts'
export type { Answer, PublishContext, Publisher } from './publisher.ts'
export { outboxTable, type OnFailure, type OutboxRow, type OutboxTableOptions } from './table.ts'
export { STATUSES, TRANSITIONS, type Status } from './transitions.ts'
export {
  listEvents,
  showEvent,
  type EventDetails,
  type EventPage,
  type EventSummary,
} from './admin/browse.ts'
export { countByStatus, oldestPending, type StatusCounts } from './admin/counts.ts'
export { explainEvent } from './admin/explain.ts'
export type { ExplainOptions } from '../operations/explain/explain.ts'
export type { Explanation, Reason } from '../operations/explain/reasons.ts'
export type { EventFilter } from './admin/filter.ts'
export { keysHeldUp, type KeysHeldUp } from './admin/held-up-keys.ts'
export { replay, resumeReplay, type ReplayOptions, type ReplayResult } from './admin/replay.ts'
export { resumeRetryNow, retryNow, type RetryNowOptions, type RetryNowResult } from './admin/retry-now.ts'
export { applyRetention, type Retention } from './admin/retention.ts'
export { unblock, type Unblocked, type UnblockRequest } from './admin/unblock.ts'
