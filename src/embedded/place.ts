import { createHash, randomBytes } from 'node:crypto'
import {
  chmod,
  lstat,
  mkdir,
  readFile,
  readdir,
  readlink,
  rename,
  symlink,
  writeFile,
} from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'

import { LeaseholdError } from '../errors.ts'
import { canReach, type Account } from './account.ts'
import { hasCode } from './system-errors.ts'

/** Where root puts what the server's account must reach but cannot reach in place. */
export const REACHABLE_ROOT = '/var/lib/leasehold'

/** The files of one embedded server, as a person finds them in its directory. */
export interface Place {
  readonly directory: string
  /** The data directory, or a link to it when the server's account cannot enter `directory`. */
  readonly data: string
  readonly password: string
  readonly log: string
  /** Of the last run. */
  readonly port: string
  readonly lock: string
}

export function placeOf(directory: string): Place {
  const absolute = resolve(directory)
  return {
    directory: absolute,
    data: join(absolute, 'data'),
    password: join(absolute, 'password'),
    log: join(absolute, 'postgres.log'),
    port: join(absolute, 'port'),
    lock: join(absolute, 'starting.lock'),
  }
}

export async function makeDirectory(place: Place): Promise<void> {
  await mkdir(place.directory, { recursive: true, mode: 0o755 })
  // The directory holds a password and usually stands in somebody's repository.
  await writeFile(join(place.directory, '.gitignore'), '*\n')
}

/** Points `data` to where the server's account can work. The caller holds the start lock. */
export async function placeData(
  place: Place,
  account: Account | undefined,
  log: (line: string) => void,
): Promise<void> {
  if (account === undefined) return
  const present = await lstatOrNothing(place.data)
  // The target of the link may have been deleted, which asks for fresh data.
  if (present?.isSymbolicLink() === true) {
    const home = dirname(await dataDirectory(place))
    return home.startsWith(`${REACHABLE_ROOT}/`) ? makeReachable(home) : undefined
  }
  if (await canReach(account, place.directory, 1)) return
  if (present === undefined) return linkToReachable(place, log)
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `The account ${account.name}, under which PostgreSQL runs when started by root, cannot enter ${place.directory}.`,
    {
      remedy: `Let it pass (chmod o+x on the directories above), or move ${place.directory} and start there.`,
    },
  )
}

/** Each link gets a target of its own: deleting `.leasehold` means a fresh start, not the old data again. */
async function linkToReachable(place: Place, log: (line: string) => void): Promise<void> {
  const home = reachableHome(place)
  await makeReachable(home)
  for (const name of await readdir(home)) {
    log(`${join(home, name)} is left from an earlier ${place.directory}; delete it if nobody needs it`)
  }
  await symlink(join(home, `data-${randomBytes(4).toString('hex')}`), place.data)
}

function reachableHome(place: Place): string {
  return join(REACHABLE_ROOT, createHash('sha256').update(place.directory).digest('hex').slice(0, 16))
}

/** Makes a directory under the reachable root that every account can enter, whatever the umask. */
export async function makeReachable(directory: string): Promise<void> {
  await mkdir(directory, { recursive: true })
  for (const path of [REACHABLE_ROOT, directory]) await chmod(path, 0o755)
}

/** The real data directory; it may not exist yet. */
export async function dataDirectory(place: Place): Promise<string> {
  const present = await lstatOrNothing(place.data)
  if (present?.isSymbolicLink() !== true) return place.data
  return resolve(place.directory, await readlink(place.data))
}

export async function readPassword(place: Place): Promise<string | undefined> {
  try {
    return (await readFile(place.password, 'utf8')).trim()
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
}

/** Written whole before initdb runs, so that there is never data without its password. */
export async function createPassword(place: Place): Promise<string> {
  const password = randomBytes(24).toString('base64url')
  const draft = `${place.password}.${randomBytes(4).toString('hex')}`
  await writeFile(draft, `${password}\n`, { mode: 0o600, flag: 'wx' })
  await rename(draft, place.password)
  return password
}

export async function lstatOrNothing(path: string) {
  try {
    return await lstat(path)
  } catch (error) {
    if (hasCode(error, 'ENOENT', 'ENOTDIR')) return undefined
    throw error
  }
}
