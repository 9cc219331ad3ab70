/**
 * Webhooks: an event is sent in the transaction that makes it true, and delivered, signed, to every endpoint that
 * wants it.
 *
 * - **A delivery is there exactly if its transaction commits**, one for each endpoint, and is then attempted until
 *   somebody answers with 2xx or the schedule is over. A receiver recognises what arrives twice by its `webhook-id`.
 * - **A dispatcher attempts what it holds a lease on**, renews the lease for as long as the receiver takes, and writes
 *   what came of it under the lease's token.
 * - **An endpoint is in nobody's way**: it has its own limits, its own circuit and its own order.
 * - **Requests go where the public internet is**, whatever a URL, a name server or a redirect says.
 * - **What has failed for good is kept**, and comes back when an operator asks for it.
 */
export { createWebhooks, send, type Send, type Webhooks, type WebhooksOptions } from './send/index.ts'
export type { NewWebhook, Sent, TraceHeaders } from './send/index.ts'
export { endpoints } from './endpoints/index.ts'
export type {
  By,
  Endpoint,
  EndpointChanges,
  EndpointDetails,
  EndpointFilter,
  EndpointNetwork,
  EndpointPage,
  Endpoints,
  EndpointsOptions,
  NewEndpoint,
  RotateOptions,
  ShownSecret,
} from './endpoints/index.ts'
export { dispatcher, type DispatcherOptions } from './dispatcher/dispatcher.ts'
export { type BreakerSettings, DEFAULT_BREAKER } from './dispatcher/breaker.ts'
export { DEFAULT_SCHEDULE } from './schedule.ts'
export { type DeliveryRow, webhookTable, type WebhookTableOptions } from './table.ts'
export { DELIVERY_STATUSES, type DeliveryStatus, TRANSITIONS } from './transitions.ts'
export {
  listDeliveries,
  type DeliveryPage,
  type DeliveryPageOptions,
  type DeliverySummary,
} from './admin/browse.ts'
export { showDelivery, type DeliveryAttempt, type DeliveryDetails } from './admin/show.ts'
export { countDeliveries, oldestPendingDelivery, type DeliveryCounts } from './admin/counts.ts'
export { summariseEndpoints, type EndpointSummaries } from './admin/endpoint-summary.ts'
export type { DeliveryFilter } from './admin/filter.ts'
export { recover, requeue, type RecoverOptions, type Requeued, type RequeueOptions } from './admin/requeue.ts'
export { cancel, type Cancelled, type CancelOptions } from './admin/cancel.ts'
export { webhookUpkeep, type WebhookRetention } from './admin/upkeep.ts'
export { LOOPBACK, type NetworkPolicyOptions, type PostLimits } from './network/index.ts'
export {
  isWebhookInvalid,
  newSecret,
  publicKeyOf,
  rememberIds,
  type RememberIdsOptions,
  type Seen,
  type VerifiedWebhook,
  type Verifier,
  verifier,
  verify,
  type VerifyOptions,
  type WebhookInvalid,
  type WebhookRequest,
} from './signing/index.ts'
