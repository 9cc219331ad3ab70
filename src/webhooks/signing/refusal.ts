/** Why a received webhook is not to be trusted. */
import { LeaseholdError } from '../../errors.ts'

export const REFUSALS = [
  'missingHeader',
  'malformed',
  'tooOld',
  'tooNew',
  'wrongSignature',
  'replayed',
] as const

export type Refusal = (typeof REFUSALS)[number]

/** A `LeaseholdError` with the code WEBHOOK_INVALID, which says in `reason` what a receiver may want to tell apart. */
export type WebhookInvalid = LeaseholdError & { readonly code: 'WEBHOOK_INVALID'; readonly reason: Refusal }

/**
 * Thrown and not returned, though it is expected: a result that has to be looked at first can be forgotten, and then a
 * forged payload is worked on. Users of `standardwebhooks` know it this way too. Nothing of the request is repeated
 * but names of headers: what was sent by an unknown is nothing to put into a log.
 */
export function webhookInvalid(reason: Refusal, message: string, remedy: string): WebhookInvalid {
  const code = 'WEBHOOK_INVALID'
  return Object.assign(new LeaseholdError(code, message, { remedy }), { code, reason } as const)
}

export function isWebhookInvalid(error: unknown, reason?: Refusal): error is WebhookInvalid {
  if (!(error instanceof LeaseholdError) || error.code !== 'WEBHOOK_INVALID' || !('reason' in error))
    return false
  return reason === undefined || error.reason === reason
}
