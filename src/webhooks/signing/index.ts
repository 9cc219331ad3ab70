/**
 * Signing, verifying and keeping secrets, after the Standard Webhooks specification.
 *
 * - **What is signed is `id.timestamp.body`**, to the byte as it is sent: the id of the event, which stays the same over
 *   retries, the time of the attempt in seconds, the body. `v1` is HMAC-SHA256 with a shared secret, `v1a` is ed25519.
 * - **A secret is replaced without a gap**: for a while both sign, newest first, and a receiver accepts what one of
 *   the signatures proves.
 * - **A receiver believes nothing before the signature is right**, and says why it refuses without repeating anything
 *   of the request.
 * - **Stored secrets are encrypted** with a key that is not in the database, each bound to its endpoint.
 */
export { newSecret, publicKeyOf, type SecretKind } from './secret.ts'
export { isMessageId, type Message, signatures, type Signer, signer } from './sign.ts'
export {
  IDEMPOTENCY_KEY,
  type SignedAttempt,
  WEBHOOK_ATTEMPT,
  WEBHOOK_HEADERS,
  WEBHOOK_ID,
  WEBHOOK_SIGNATURE,
  WEBHOOK_TIMESTAMP,
  type WebhookHeaders,
  webhookHeaders,
} from './headers.ts'
export { type VerifiedWebhook, type Verifier, verifier, verify, type VerifyOptions } from './verify.ts'
export type { FetchRequest, HeadersLike, RawRequest, WebhookRequest } from './received.ts'
export { isWebhookInvalid, type Refusal, REFUSALS, type WebhookInvalid } from './refusal.ts'
export { rememberIds, type RememberIdsOptions, type Seen } from './remember-ids.ts'
export {
  decrypt,
  encrypt,
  isUnderNewestKey,
  SECRET_KEY_SETTING,
  secretKey,
  type SecretKeys,
  secretKeys,
} from './encryption.ts'
