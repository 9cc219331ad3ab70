/**
 * Webhooks: an event is sent in the transaction that makes it true, and delivered, signed, to every subscribed endpoint.
 *
 * - **A delivery exists exactly if its transaction commits**, one for each endpoint. It is attempted until the endpoint
 *   responds with 2xx or the schedule ends. A receiver recognises duplicates by their `webhook-id`.
 * - **A dispatcher attempts the deliveries that it has a lease on.** It renews the lease for as long as the receiver
 *   takes, and writes the outcome under the lease's token.
 * - **Endpoints do not affect each other**: each has its own limits, its own circuit and its own order.
 * - **Requests go to the public internet only**, whatever a URL, a name server or a redirect says.
 * - **Failed deliveries are retained**, and an operator can replay them.
 */
export {
  createWebhooks,
  type NewWebhook,
  send,
  type Send,
  type TraceHeaders,
  type Webhooks,
  type WebhooksOptions,
} from './send/send.ts'
export type { Sent } from './send/fan-out.ts'
export { sendTest, TEST_EVENT_TYPE, type TestSent } from './send/test-event.ts'
export {
  type EndpointFilter,
  type EndpointNetwork,
  type EndpointPage,
  endpoints,
  type Endpoints,
  type EndpointsOptions,
  type RotateOptions,
} from './endpoints/endpoints.ts'
export type {
  By,
  Endpoint,
  EndpointChanges,
  EndpointDetails,
  NewEndpoint,
  ShownSecret,
  UpdatedEndpoint,
} from './endpoints/endpoint.ts'
export { dispatcher, type DispatcherOptions } from './dispatcher/dispatcher.ts'
export { type CircuitBreakerSettings, DEFAULT_CIRCUIT_BREAKER } from './dispatcher/circuit-breaker.ts'
export { DEFAULT_SCHEDULE } from './schedule.ts'
export { type DeliveryRow, webhookTable, type WebhookTableOptions } from './table.ts'
export { DELIVERY_STATUSES, type DeliveryStatus, TRANSITIONS } from './transitions.ts'
export {
  listDeliveries,
  showDelivery,
  type DeliveryAttempt,
  type DeliveryDetails,
  type DeliveryPage,
  type DeliverySummary,
} from './admin/browse.ts'
export { countDeliveries, oldestPendingDelivery, type DeliveryCounts } from './admin/counts.ts'
export { summariseEndpoints, type EndpointSummaries } from './admin/endpoint-summary.ts'
export { explainDelivery, type ExplainDeliveryOptions } from './admin/explain.ts'
export type { Explanation, Reason } from '../operations/explain/reasons.ts'
export type { DeliveryFilter } from './admin/filter.ts'
export { LOOPBACK, type NetworkPolicyOptions } from './network/policy.ts'
export type { PostLimits } from './network/post.ts'
export { newSecret, publicKeyOf } from './signing/secret.ts'
export { replay, resumeReplay, type ReplayOptions, type ReplayResult } from './admin/replay.ts'
export { cancel, resumeCancel, type CancelOptions, type CancelResult } from './admin/cancel.ts'
export { resumeRetryNow, retryNow, type RetryNowOptions, type RetryNowResult } from './admin/retry-now.ts'
export { applyRetention, type WebhookRetention } from './admin/retention.ts'
export { maintain, type WebhookMaintenance } from './admin/maintenance.ts'
export {
  isWebhookInvalid,
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
} from './signing/verify.ts'
