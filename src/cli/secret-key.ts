import { embeddedSecretKey } from '../embedded/index.ts'
import type { Settings } from '../config/index.ts'

/** What secrets are encrypted with: the setting, or with the embedded server a key of its own. Never shown. */
export async function secretKeyOf({
  secretKey,
  databaseUrl,
  directory,
}: Pick<Settings, 'secretKey' | 'databaseUrl' | 'directory'>): Promise<string | undefined> {
  if (secretKey !== undefined) return secretKey
  return databaseUrl === undefined ? embeddedSecretKey(directory) : undefined
}
