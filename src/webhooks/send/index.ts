/** Sending: deliveries written in the transaction that makes their event true. */
export { createWebhooks, send, type Send, type Webhooks, type WebhooksOptions } from './webhooks.ts'
export type { NewWebhook, Sent, TraceHeaders } from './event.ts'
