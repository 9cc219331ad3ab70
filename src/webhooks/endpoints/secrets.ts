/** The secrets and headers of endpoints: encrypting them for storage, and re-encrypting them under a new key. */
import { audit } from '../../operations/audit.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import {
  decrypt,
  encrypt,
  isUnderNewestKey,
  SECRET_KEY_SETTING,
  type SecretKeys,
  secretKeys,
} from '../signing/encryption.ts'
import { newSecret, publicKeyOf, type SecretKind } from '../signing/secret.ts'
import type { By, ShownSecret } from './endpoint.ts'

/**
 * Reads the encryption keys from the option, or else from the environment. Several are separated by commas, the newest
 * first. Returns undefined if there is none, which is fine for callers that touch no secret.
 */
export function readSecretKeys(
  given: string | undefined,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): SecretKeys | undefined {
  const text = given ?? environment[SECRET_KEY_SETTING]
  if (text === undefined || text.trim() === '') return undefined
  return secretKeys(text.split(',').map((key) => key.trim()))
}

/** Throws if there is no key: neither a secret nor a header is ever stored in plain text. */
export function requireSecretKeys(keys: SecretKeys | undefined): SecretKeys {
  if (keys !== undefined) return keys
  throw new LeaseholdError(
    'SECRET_KEY_INVALID',
    `The secrets and headers of endpoints are stored encrypted, and the key for that (secretKey, or ${SECRET_KEY_SETTING}) is not set. Nothing was changed.`,
    {
      remedy: `Make one with \`openssl rand -base64 32\` or \`node -p "crypto.randomBytes(32).toString('base64')"\`, keep it outside the database, and give it to every process that creates endpoints or delivers.`,
    },
  )
}

export interface EncryptedSecret {
  /** What the caller is shown, once. */
  readonly shown: ShownSecret
  /** What is stored. */
  readonly stored: string
}

/** Encrypts the given secret, or a new one, for this endpoint only. */
export function encryptSecret(
  keys: SecretKeys,
  endpointId: string,
  signing: SecretKind,
  given: string | undefined,
): EncryptedSecret {
  const secret = given ?? newSecret(signing)
  return {
    shown: { secret, publicKey: signing === 'v1a' ? publicKeyOf(secret) : null },
    stored: encrypt(keys, secret, endpointId),
  }
}

/** Encrypts a stored secret with the newest key. */
export function reencrypt(keys: SecretKeys, endpointId: string, stored: string): string {
  return encrypt(keys, decrypt(keys, stored, endpointId), endpointId)
}

export type Headers = Readonly<Record<string, string>>

/** Encrypts the value of each header. Names are not encrypted, because listings show them. */
export function encryptHeaders(keys: SecretKeys, endpointId: string, headers: Headers): Headers {
  return mapValues(headers, (name, value) => encrypt(keys, value, headerOf(endpointId, name)))
}

/** The values of stored headers. */
export function decryptHeaders(keys: SecretKeys, endpointId: string, stored: Headers): Headers {
  return mapValues(stored, (name, value) => decrypt(keys, value, headerOf(endpointId, name)))
}

/** Not the id alone: a secret that is copied into a header must not be decrypted and sent. */
function headerOf(endpointId: string, name: string): string {
  return `${endpointId}, header ${name}`
}

function mapValues(headers: Headers, map: (name: string, value: string) => string): Headers {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, map(name, value)]))
}

/** The public key that receivers of this endpoint verify with; null for a shared secret, or without an encryption key. */
export function publicKeyIn(
  keys: SecretKeys | undefined,
  { id, signing, secret }: { readonly id: string; readonly signing: SecretKind; readonly secret: string },
): string | null {
  return keys === undefined || signing !== 'v1a' ? null : publicKeyOf(decrypt(keys, secret, id))
}

/** How many endpoints one transaction locks. */
const REENCRYPT_BATCH = 200

interface SecretsRow {
  readonly id: string
  readonly secret: string
  readonly previous: string | null
  readonly headers: Headers
}

/** Encrypts with the newest key every secret and header that an older key encrypted. Returns how many endpoints were changed. */
export async function reencryptSecrets(
  db: Database,
  schema: string,
  keys: SecretKeys,
  by: By,
): Promise<number> {
  let changed = 0
  let after: string | undefined = '00000000-0000-0000-0000-000000000000'
  while (after !== undefined) {
    const batch: ReencryptedBatch = await reencryptBatch(db, schema, keys, by, after)
    changed += batch.changed
    after = batch.last
  }
  return changed
}

interface ReencryptedBatch {
  /** The id of the last endpoint of the batch; undefined when there was none. */
  readonly last: string | undefined
  readonly changed: number
}

async function reencryptBatch(
  db: Database,
  schema: string,
  keys: SecretKeys,
  by: By,
  after: string,
): Promise<ReencryptedBatch> {
  const table = quoteQualified(schema, 'webhook_endpoints')
  return db.transaction(async (tx) => {
    const { rows } = await tx.query<SecretsRow>({
      text: `select e.id::text as id, secret, previous_secret as previous, headers from ${table} as e
where e.id > $1::uuid order by e.id limit ${REENCRYPT_BATCH} for update`,
      values: [after],
    })
    const older = rows.filter(({ secret, previous, headers }) =>
      [secret, previous, ...Object.values(headers)].some(
        (text) => text !== null && !isUnderNewestKey(keys, text),
      ),
    )
    for (const { id, secret, previous, headers } of older) {
      await tx.query({
        text: `update ${table} set secret = $2, previous_secret = $3, headers = $4, updated_at = now() where id = $1`,
        values: [
          id,
          reencrypt(keys, id, secret),
          previous === null ? null : reencrypt(keys, id, previous),
          JSON.stringify(encryptHeaders(keys, id, decryptHeaders(keys, id, headers))),
        ],
      })
    }
    if (older.length > 0) {
      const { principal, reason } = by
      const details = { ...(reason === undefined ? {} : { reason }), endpoints: older.map(({ id }) => id) }
      await audit(tx, schema, { principal, action: 'webhooks.endpoint.encrypt', target: null, details })
    }
    return { last: rows.at(-1)?.id, changed: older.length }
  })
}
