/**
 * Signs deliveries as Standard Webhooks specifies. What is signed is `id.timestamp.body`, to the byte as it is sent: the
 * event id, which is the same in every attempt; the time of the attempt in seconds; and the body. `v1` is HMAC-SHA256
 * with a shared secret, `v1a` is ed25519. While a secret is being rotated, both secrets sign, the newest first.
 */
import { createHmac, sign } from 'node:crypto'

import { LeaseholdError } from '../../errors.ts'
import { signingKey } from './secret.ts'

export const WEBHOOK_ID = 'webhook-id'
export const WEBHOOK_TIMESTAMP = 'webhook-timestamp'
export const WEBHOOK_SIGNATURE = 'webhook-signature'
export const WEBHOOK_ATTEMPT = 'webhook-attempt'
const IDEMPOTENCY_KEY = 'idempotency-key'

/** The headers of every delivery. The headers of an endpoint cannot replace them. */
export type WebhookHeaders = Readonly<
  Record<
    | typeof WEBHOOK_ID
    | typeof WEBHOOK_TIMESTAMP
    | typeof WEBHOOK_SIGNATURE
    | typeof WEBHOOK_ATTEMPT
    | typeof IDEMPOTENCY_KEY,
    string
  >
>

export interface Message {
  /** The same for every attempt of an event. Printable ASCII without spaces and without a dot. */
  readonly id: string
  /** The time of the attempt, not of the event, in seconds since 1970. */
  readonly timestampSeconds: number
  /** Exactly what is sent. */
  readonly body: string | Uint8Array
}

export interface SignedAttempt extends Message {
  /** Newest first. */
  readonly signers: readonly Signer[]
  /** 1 for the first. It is not signed, so a receiver must not rely on it. */
  readonly attempt: number
}

/** Signs with one secret: `v1,<base64>` or `v1a,<base64>`. */
export type Signer = (message: Message) => string

/** The dot ends the id in what is signed: an id with a dot would let another message have the same signature. */
const MESSAGE_ID = /^[!-\-/-~]{1,256}$/

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

/** Parses the secret once, so that thousands of messages a second cost only their signatures. */
export function signer(secret: string): Signer {
  const { kind, key } = signingKey(secret)
  if (kind === 'v1') {
    return (message) =>
      `v1,${createHmac('sha256', key).update(preamble(message)).update(message.body).digest('base64')}`
  }
  return (message) => `v1a,${sign(null, signedContent(message), key).toString('base64')}`
}

/** The value of `webhook-signature`: one signature for each signer, in their order. */
export function signatures({
  signers,
  ...message
}: Message & { readonly signers: readonly Signer[] }): string {
  if (signers.length === 0) {
    throw new LeaseholdError('REQUEST_INVALID', 'signers is empty.', {
      remedy: 'Give the signer of at least one secret: a webhook is never sent unsigned.',
    })
  }
  return signers.map((signed) => signed(message)).join(' ')
}

/** Whether an id can be sent in a header and signed without ambiguity. */
export function isMessageId(id: unknown): id is string {
  return typeof id === 'string' && MESSAGE_ID.test(id)
}

function preamble({ id, timestampSeconds }: Message): string {
  if (!isMessageId(id)) {
    throw new LeaseholdError('REQUEST_INVALID', `id is ${JSON.stringify(id)}.`, {
      remedy: 'Give 1 to 256 characters of printable ASCII, without spaces and without a dot.',
    })
  }
  if (!Number.isSafeInteger(timestampSeconds) || timestampSeconds < 0) {
    throw new LeaseholdError('REQUEST_INVALID', `timestampSeconds is ${timestampSeconds}.`, {
      remedy: 'Give whole seconds since 1970, for example Math.floor(Date.now() / 1000).',
    })
  }
  return `${id}.${timestampSeconds}.`
}

/** ed25519 signs its input in one piece. */
function signedContent(message: Message): Buffer {
  const { body } = message
  return Buffer.concat([Buffer.from(preamble(message)), typeof body === 'string' ? Buffer.from(body) : body])
}
