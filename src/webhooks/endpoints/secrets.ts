/** Secrets of endpoints on their way into the database and out of it. */
import { LeaseholdError } from '../../errors.ts'
import {
  decrypt,
  encrypt,
  newSecret,
  publicKeyOf,
  SECRET_KEY_SETTING,
  type SecretKeys,
  secretKeys,
  type SecretKind,
} from '../signing/index.ts'
import type { ShownSecret } from './endpoint.ts'

/**
 * The keys that secrets are encrypted with: of the option, or else of the environment. Several are separated by commas,
 * the newest first. `undefined` where there is none, which is enough for those who touch no secret.
 */
export function keysOf(
  given: string | undefined,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): SecretKeys | undefined {
  const text = given ?? environment[SECRET_KEY_SETTING]
  if (text === undefined || text.trim() === '') return undefined
  return secretKeys(text.split(',').map((key) => key.trim()))
}

/** Refuses to go on without a key: a secret is never stored as it is. */
export function neededKeys(keys: SecretKeys | undefined): SecretKeys {
  if (keys !== undefined) return keys
  throw new LeaseholdError(
    'SECRET_KEY_INVALID',
    `The secrets of endpoints are stored encrypted, and the key for that (secretKey, or ${SECRET_KEY_SETTING}) is not set. Nothing was changed.`,
    {
      remedy: `Make one with \`openssl rand -base64 32\` or \`node -p "crypto.randomBytes(32).toString('base64')"\`, keep it outside the database, and give it to every process that creates endpoints or delivers.`,
    },
  )
}

export interface KeptSecret {
  readonly shown: ShownSecret
  /** As it is stored. */
  readonly stored: string
}

/** The secret that was given, or a new one, encrypted for this endpoint alone. */
export function keepSecret(
  keys: SecretKeys,
  endpointId: string,
  signing: SecretKind,
  given: string | undefined,
): KeptSecret {
  const secret = given ?? newSecret(signing)
  return {
    shown: { secret, publicKey: signing === 'v1a' ? publicKeyOf(secret) : null },
    stored: encrypt(keys, secret, endpointId),
  }
}

/** What is stored, under the newest key: rotating a secret is also the moment at which an old key gets out of use. */
export function kept(keys: SecretKeys, endpointId: string, stored: string): string {
  return encrypt(keys, decrypt(keys, stored, endpointId), endpointId)
}

/** What receivers of this endpoint verify with; null for a shared secret, or without a key to open it. */
export function publicKeyIn(
  keys: SecretKeys | undefined,
  { id, signing, secret }: { readonly id: string; readonly signing: SecretKind; readonly secret: string },
): string | null {
  return keys === undefined || signing !== 'v1a' ? null : publicKeyOf(decrypt(keys, secret, id))
}
