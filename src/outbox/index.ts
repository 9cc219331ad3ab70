/**
 * The outbox: write an event in the transaction that makes it true, and be sure that it arrives.
 *
 * - **An event is written exactly if its transaction commits**, and then published at least once. A consumer
 *   recognises what arrives twice by its event id, and `once` gives it an effect that happens once.
 * - **A relay publishes what it holds a lease on**, and writes what became of it under the lease's token: one that was
 *   paused, cut off or declared dead changes nothing any more.
 * - **Events of an ordering key are published one at a time, in the order in which they were written.** A key that
 *   cannot go on holds up nobody else.
 * - **What has failed for good is kept**, and comes back by a replay that says who wanted it and why.
 */
export {
  createOutbox,
  enqueue,
  type Enqueue,
  type EnqueueOptions,
  type Outbox,
  type OutboxOptions,
} from './enqueue/outbox.ts'
export type { Enqueued } from './enqueue/enqueue.ts'
export type { AnyPayloads, EventPayloads, NewEvent, OutboxEvent } from './event.ts'
export {
  fromDrizzle,
  fromKnex,
  fromKysely,
  fromPg,
  fromPostgresJs,
  fromPrisma,
  fromQueryable,
} from '../transactions/writer-adapters.ts'
export type { Writer } from '../transactions/writer-types.ts'
export type { StandardSchema } from '../messages/validate-schema.ts'
export { forgetInbox, once, type Once } from './inbox.ts'
export { relay, type RelayOptions } from './relay.ts'
export type { Answer, PublishContext, Publisher } from './publisher.ts'
export { HEADER, headersOf } from './headers.ts'
export { outboxTable, type OnFailure, type OutboxRow, type OutboxTableOptions } from './table.ts'
export { STATUSES, TRANSITIONS, type Status } from './transitions.ts'
export {
  listEvents,
  showEvent,
  type EventDetails,
  type EventPage,
  type EventSummary,
} from './admin/browse.ts'
export { countByStatus, oldestPending, type StatusCounts } from './admin/browse-counts.ts'
export type { EventFilter } from './admin/browse-filter.ts'
export { keysHeldUp, type KeysHeldUp } from './admin/browse-keys.ts'
export { replay, resumeReplay, type Replayed, type ReplayOptions } from './admin/replay.ts'
export { applyRetention, type Retention } from './admin/retention.ts'
export { unblock, type Unblocked, type UnblockRequest } from './admin/unblock.ts'
