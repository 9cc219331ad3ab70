/**
 * Secrets in the format of Standard Webhooks: `whsec_` for a secret that sender and receiver share (v1, HMAC-SHA256),
 * `whsk_` and `whpk_` for the private and the public ed25519 key (v1a). No error repeats any part of a secret.
 */
import {
  createPrivateKey,
  createPublicKey,
  createSecretKey,
  generateKeyPairSync,
  type KeyObject,
  randomBytes,
} from 'node:crypto'

import { LeaseholdError } from '../../errors.ts'

/** v1: both sides hold the same secret. v1a: the receiver holds only the public key. */
export type SecretKind = 'v1' | 'v1a'

/** A key that signs or verifies; a shared secret does both. */
export interface Key {
  readonly kind: SecretKind
  readonly key: KeyObject
}

const SHARED = 'whsec_'
const PRIVATE = 'whsk_'
const PUBLIC = 'whpk_'
/** The limits of the specification. */
const MIN_SHARED_BYTES = 24
const MAX_SHARED_BYTES = 64
const NEW_SHARED_BYTES = 32
const ED25519_BYTES = 32
/** The DER prefix of an ed25519 key (RFC 8410): node:crypto does not read the bare 32 bytes. */
const PRIVATE_DER = Buffer.from('302e020100300506032b657004220420', 'hex')
const PUBLIC_DER = Buffer.from('302a300506032b6570032100', 'hex')

/** Makes a secret to sign with. The receiver of a v1a endpoint gets `publicKeyOf(secret)` instead of it. */
export function newSecret(kind: SecretKind): string {
  switch (kind) {
    case 'v1':
      return `${SHARED}${randomBytes(NEW_SHARED_BYTES).toString('base64')}`
    case 'v1a': {
      const { privateKey } = generateKeyPairSync('ed25519')
      const seed = privateKey.export({ type: 'pkcs8', format: 'der' }).subarray(PRIVATE_DER.length)
      // The specification leaves the form open; other senders write the seed followed by the public key.
      return `${PRIVATE}${Buffer.concat([seed, publicBytes(privateKey)]).toString('base64')}`
    }
    default:
      throw new LeaseholdError('REQUEST_INVALID', `kind is ${JSON.stringify(kind)}.`, {
        remedy: "Give 'v1' (a shared secret) or 'v1a' (an ed25519 key).",
      })
  }
}

/** The key that a receiver of v1a signatures verifies with: `whpk_…`. It need not be secret. */
export function publicKeyOf(secret: string): string {
  const { kind, key } = signingKey(secret)
  if (kind === 'v1a') return `${PUBLIC}${publicBytes(key).toString('base64')}`
  return refuse('has no public key: it is a shared one.', `Give one that begins with ${PRIVATE}.`)
}

/** The key to sign with, from `whsec_…` or `whsk_…`. */
export function signingKey(secret: string): Key {
  if (isOf(secret, SHARED)) return { kind: 'v1', key: sharedKey(secret) }
  if (isOf(secret, PRIVATE)) return { kind: 'v1a', key: privateKeyIn(secret) }
  return refuse(
    `does not begin with ${SHARED} or ${PRIVATE}.`,
    `Give a secret to sign with: ${SHARED}… (shared) or ${PRIVATE}… (ed25519), prefix included.`,
  )
}

/** The key to verify with, from `whsec_…` or `whpk_…`. */
export function verifyingKey(secret: string): Key {
  if (isOf(secret, SHARED)) return { kind: 'v1', key: sharedKey(secret) }
  if (isOf(secret, PUBLIC)) return { kind: 'v1a', key: publicKeyIn(secret) }
  if (isOf(secret, PRIVATE)) {
    // It would work, but a receiver that holds it could sign as well.
    return refuse('is a private key.', `Verify with its public key, ${PUBLIC}…, which publicKeyOf() returns.`)
  }
  return refuse(
    `does not begin with ${SHARED} or ${PUBLIC}.`,
    `Give what the sender showed for this endpoint: ${SHARED}… or ${PUBLIC}…, prefix included.`,
  )
}

function isOf(secret: unknown, prefix: string): boolean {
  return typeof secret === 'string' && secret.startsWith(prefix)
}

function sharedKey(secret: string): KeyObject {
  const bytes = bytesAfter(SHARED, secret)
  if (bytes.length < MIN_SHARED_BYTES || bytes.length > MAX_SHARED_BYTES) {
    refuse(
      `has ${bytes.length} bytes.`,
      `Give ${MIN_SHARED_BYTES} to ${MAX_SHARED_BYTES} random bytes, as newSecret('v1') does.`,
    )
  }
  return createSecretKey(bytes)
}

/** The seed alone, or the seed and its public key. */
function privateKeyIn(secret: string): KeyObject {
  const bytes = bytesAfter(PRIVATE, secret)
  if (bytes.length !== ED25519_BYTES && bytes.length !== 2 * ED25519_BYTES) {
    refuse(
      `has ${bytes.length} bytes.`,
      `Give the ${ED25519_BYTES} of an ed25519 seed, or ${2 * ED25519_BYTES} with its public key.`,
    )
  }
  const der = Buffer.concat([PRIVATE_DER, bytes.subarray(0, ED25519_BYTES)])
  const key = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' })
  const given = bytes.subarray(ED25519_BYTES)
  if (given.length > 0 && !given.equals(publicBytes(key))) {
    refuse('has a public key that is not that of its seed.', 'Copy it once more, or make one with newSecret.')
  }
  return key
}

function publicKeyIn(text: string): KeyObject {
  const bytes = bytesAfter(PUBLIC, text)
  if (bytes.length !== ED25519_BYTES) {
    refuse(`has ${bytes.length} bytes.`, `Give the ${ED25519_BYTES} of an ed25519 public key.`)
  }
  return createPublicKey({ key: Buffer.concat([PUBLIC_DER, bytes]), format: 'der', type: 'spki' })
}

function publicBytes(privateKey: KeyObject): Buffer {
  return createPublicKey(privateKey).export({ type: 'spki', format: 'der' }).subarray(PUBLIC_DER.length)
}

function bytesAfter(prefix: string, secret: string): Buffer {
  const text = secret.slice(prefix.length)
  const bytes = Buffer.from(text, 'base64')
  // Buffer ignores characters that are not base64: a damaged secret would sign, with another key.
  if (bytes.toString('base64') === text) return bytes
  return refuse(`is not base64 after ${prefix}.`, 'Copy it whole, padding included and without spaces.')
}

function refuse(what: string, remedy: string): never {
  throw new LeaseholdError('REQUEST_INVALID', `secret ${what}`, { remedy })
}
