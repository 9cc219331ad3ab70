/**
 * Encrypts the secrets and headers of endpoints for storage: AES-256-GCM with a key that is not in the database, so that
 * nobody can sign, or use an authorization, with a dump of the database.
 *
 *     enc1.<id of the key>.<base64url of nonce, tag and ciphertext>
 *
 * The endpoint's id is authenticated data: a ciphertext that is copied to another endpoint cannot be decrypted there. The
 * id of the key says which key to use, so that older keys still decrypt what they encrypted after a new one was added.
 */
import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createSecretKey,
  type KeyObject,
  randomBytes,
} from 'node:crypto'

import { LeaseholdError } from '../../errors.ts'

/** The setting that the key comes from, as messages name it. */
export const SECRET_KEY_SETTING = 'LEASEHOLD_SECRET_KEY'

/** Encrypts with the newest key, decrypts with any. Printing this object shows no key. */
export interface SecretKeys {
  readonly newest: SecretKey
  readonly byId: ReadonlyMap<string, SecretKey>
}

interface SecretKey {
  /** Part of a hash of the key: it distinguishes keys and reveals nothing about them. */
  readonly id: string
  readonly key: KeyObject
}

const VERSION = 'enc1'
const CIPHER = 'aes-256-gcm'
const KEY_BYTES = 32
const KEY_ID_BYTES = 6
const NONCE_BYTES = 12
const TAG_BYTES = 16
const STORED = /^enc1\.([0-9a-f]{12})\.([\w-]+)$/

/** One key: 32 bytes, as base64 or as hex. */
export function secretKey(text: string): SecretKeys {
  return secretKeys([text])
}

/** Several keys, the newest first: what an older key encrypted stays readable. */
export function secretKeys(texts: readonly string[]): SecretKeys {
  const keys = texts.map(readKey)
  const [newest] = keys
  if (newest === undefined) throw keyInvalid('is not set.')
  return { newest, byId: new Map(keys.map((key) => [key.id, key])) }
}

/** `boundTo` says what the text belongs to, for example the id of an endpoint. Decrypting needs the same. */
export function encrypt({ newest }: SecretKeys, plain: string, boundTo: string): string {
  const nonce = randomBytes(NONCE_BYTES)
  const cipher = createCipheriv(CIPHER, newest.key, nonce, { authTagLength: TAG_BYTES })
  cipher.setAAD(authenticatedData(newest.id, boundTo))
  const ciphertext = Buffer.concat([cipher.update(plain, 'utf8'), cipher.final()])
  return `${VERSION}.${newest.id}.${Buffer.concat([nonce, cipher.getAuthTag(), ciphertext]).toString('base64url')}`
}

export function decrypt(keys: SecretKeys, stored: string, boundTo: string): string {
  const { keyId, bytes } = readStored(stored, boundTo)
  const found = keys.byId.get(keyId)
  if (found === undefined) {
    throw keyInvalid(
      `is not the key that the secret of ${boundTo} was encrypted with: that one has the id ${keyId}, given: ${[...keys.byId.keys()].join(', ')}.`,
      'Add the older key after the newest.',
    )
  }
  const nonce = bytes.subarray(0, NONCE_BYTES)
  const tag = bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES)
  const decipher = createDecipheriv(CIPHER, found.key, nonce, { authTagLength: TAG_BYTES })
  decipher.setAAD(authenticatedData(keyId, boundTo)).setAuthTag(tag)
  const plain = decipher.update(bytes.subarray(NONCE_BYTES + TAG_BYTES))
  try {
    return Buffer.concat([plain, decipher.final()]).toString('utf8')
  } catch {
    throw damaged(boundTo, 'was changed, or belongs to something else')
  }
}

/** False when an older key encrypted it: re-encrypt it before that key is removed. */
export function isUnderNewestKey({ newest }: SecretKeys, stored: string): boolean {
  return STORED.exec(stored)?.[1] === newest.id
}

function readKey(text: string): SecretKey {
  const bytes = bytesOf(text)
  if (bytes?.length !== KEY_BYTES) throw keyInvalid(`is not ${KEY_BYTES} bytes as base64 or hex.`)
  const id = createHash('sha256').update('leasehold secret key\0').update(bytes).digest('hex')
  return { id: id.slice(0, 2 * KEY_ID_BYTES), key: createSecretKey(bytes) }
}

/** Hex is tried first: 64 hex digits are also valid base64, of other bytes. */
function bytesOf(given: string): Buffer | undefined {
  const text = given.trim()
  if (/^[\da-f]{64}$/i.test(text)) return Buffer.from(text, 'hex')
  const bytes = Buffer.from(text, 'base64')
  return bytes.toString('base64') === text ? bytes : undefined
}

function readStored(stored: string, boundTo: string): { keyId: string; bytes: Buffer } {
  const [, keyId, text] = STORED.exec(stored) ?? []
  if (keyId === undefined || text === undefined) throw damaged(boundTo, 'is not in the form it was stored in')
  const bytes = Buffer.from(text, 'base64url')
  // Only one form is valid; otherwise a changed last character could go unnoticed.
  if (bytes.length < NONCE_BYTES + TAG_BYTES || bytes.toString('base64url') !== text) {
    throw damaged(boundTo, 'is not in the form it was stored in')
  }
  return { keyId, bytes }
}

function authenticatedData(keyId: string, boundTo: string): Buffer {
  if (boundTo === '') {
    throw new LeaseholdError('REQUEST_INVALID', 'boundTo is empty.', {
      remedy: 'Give the id of what the secret belongs to.',
    })
  }
  return Buffer.from(`${VERSION}.${keyId}.${boundTo}`)
}

function keyInvalid(problem: string, ownRemedy?: string): LeaseholdError {
  const remedy =
    ownRemedy ??
    `Set it to 32 random bytes, for example from: openssl rand -base64 32. Keep it out of the database.`
  return new LeaseholdError('SECRET_KEY_INVALID', `${SECRET_KEY_SETTING} ${problem}`, { remedy })
}

function damaged(boundTo: string, problem: string): LeaseholdError {
  return new LeaseholdError('SECRET_DAMAGED', `The stored secret of ${boundTo} ${problem}.`, {
    remedy:
      'Rotate the secret of this endpoint, or set its headers again, and find out who writes to its row.',
  })
}
