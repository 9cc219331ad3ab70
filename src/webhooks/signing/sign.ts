/** Signatures over `id.timestamp.body`, the content that Standard Webhooks signs. */
import { createHmac, sign } from 'node:crypto'

import { LeaseholdError } from '../../errors.ts'
import { signingKey } from './secret.ts'

export interface Message {
  /** The same for every attempt of an event. Printable ASCII without spaces and without a dot. */
  readonly id: string
  /** Of the attempt, not of the event: seconds since 1970. */
  readonly timestampSeconds: number
  /** Exactly what is sent. */
  readonly body: string | Uint8Array
}

/** Signs with one secret: `v1,<base64>` or `v1a,<base64>`. */
export type Signer = (message: Message) => string

/** The dot ends the id in what is signed: with one inside, another message could have the same signature. */
const ID = /^[!-\-/-~]{1,256}$/

/** Reads the secret once, so that thousands of messages a second pay for their signature only. */
export function signer(secret: string): Signer {
  const { kind, key } = signingKey(secret)
  if (kind === 'v1') {
    return (message) =>
      `v1,${createHmac('sha256', key).update(preamble(message)).update(message.body).digest('base64')}`
  }
  return (message) => `v1a,${sign(null, signedContent(message), key).toString('base64')}`
}

/**
 * The value of `webhook-signature`: one signature for each signer, in their order. The newest secret comes first; while
 * an older one is still in use with some receivers, its signer comes after it.
 */
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

/** Whether an id can stand in a header and be signed without ambiguity. */
export function isMessageId(id: unknown): id is string {
  return typeof id === 'string' && ID.test(id)
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

/** ed25519 signs in one piece. */
function signedContent(message: Message): Buffer {
  const { body } = message
  return Buffer.concat([Buffer.from(preamble(message)), typeof body === 'string' ? Buffer.from(body) : body])
}
