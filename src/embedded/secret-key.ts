import { randomBytes } from 'node:crypto'
import { link, mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'

import { hasCode } from './system-errors.ts'

const KEY_BYTES = 32

/**
 * The key with which secrets are encrypted in the embedded server of this directory: made once, and kept beside its
 * password, for this account's eyes only. It is worth no more than the directory: who reads one reads the other.
 */
export async function embeddedSecretKey(directory: string): Promise<string> {
  const file = join(resolve(directory), 'secret-key')
  return (await readKey(file)) ?? createKey(file)
}

async function readKey(file: string): Promise<string | undefined> {
  try {
    return (await readFile(file, 'utf8')).trim()
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
}

/** Written whole under another name, then given its own: of several who make one at once, all have the first one's. */
async function createKey(file: string): Promise<string> {
  const key = randomBytes(KEY_BYTES).toString('base64')
  const draft = `${file}.${randomBytes(4).toString('hex')}`
  await mkdir(dirname(file), { recursive: true, mode: 0o755 })
  await writeFile(draft, `${key}\n`, { mode: 0o600, flag: 'wx' })
  try {
    await link(draft, file)
    return key
  } catch (error) {
    if (!hasCode(error, 'EEXIST')) throw error
    return (await readKey(file)) ?? key
  } finally {
    await rm(draft, { force: true })
  }
}
