import { LeaseholdError } from '../../errors.ts'
import { type Message, signatures, type Signer } from './sign.ts'

export const WEBHOOK_ID = 'webhook-id'
export const WEBHOOK_TIMESTAMP = 'webhook-timestamp'
export const WEBHOOK_SIGNATURE = 'webhook-signature'
export const WEBHOOK_ATTEMPT = 'webhook-attempt'
export const IDEMPOTENCY_KEY = 'idempotency-key'

/** What every delivery carries; an endpoint's own headers must not replace any of them. */
export const WEBHOOK_HEADERS = [
  WEBHOOK_ID,
  WEBHOOK_TIMESTAMP,
  WEBHOOK_SIGNATURE,
  WEBHOOK_ATTEMPT,
  IDEMPOTENCY_KEY,
] as const

export type WebhookHeaders = Readonly<Record<(typeof WEBHOOK_HEADERS)[number], string>>

export interface SignedAttempt extends Message {
  /** Newest first. */
  readonly signers: readonly Signer[]
  /** 1 for the first. Not signed: it informs, nothing may depend on it. */
  readonly attempt: number
}

export function webhookHeaders({ attempt, ...signed }: SignedAttempt): WebhookHeaders {
  if (!Number.isSafeInteger(attempt) || attempt < 1) {
    throw new LeaseholdError('REQUEST_INVALID', `attempt is ${attempt}.`, {
      remedy: 'Give the number of the attempt: 1 for the first.',
    })
  }
  return {
    [WEBHOOK_ID]: signed.id,
    [WEBHOOK_TIMESTAMP]: String(signed.timestampSeconds),
    [WEBHOOK_SIGNATURE]: signatures(signed),
    [WEBHOOK_ATTEMPT]: String(attempt),
    [IDEMPOTENCY_KEY]: signed.id,
  }
}
