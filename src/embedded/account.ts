import { chmod, mkdir, readFile, realpath, stat } from 'node:fs/promises'
import { dirname } from 'node:path'

import { hasCode, LeaseholdError } from '../errors.ts'

/** The operating-system account of the server, if it is not our own. */
export interface Account {
  readonly name: string
  readonly uid: number
  readonly gid: number
}

const CANDIDATES = ['postgres', '_postgres', 'nobody']

/**
 * PostgreSQL refuses to run as root, so root runs it under another account: the owner of the data directory if it
 * exists, otherwise an existing unprivileged account. It must have a name, because initdb looks its own name up.
 * Returns `undefined` if we are not root and can use our own account.
 */
export async function serverAccount(data: string): Promise<Account | undefined> {
  if (process.getuid?.() !== 0) return undefined
  const accounts = parsePasswd(await readFile('/etc/passwd', 'utf8'))
  return (await ownerOf(data, accounts)) ?? unprivileged(accounts)
}

async function ownerOf(data: string, accounts: Accounts): Promise<Account | undefined> {
  try {
    const { uid, gid } = await stat(data)
    const named = [...accounts.values()].find((account) => account.uid === uid)
    return uid === 0 ? undefined : { name: named?.name ?? String(uid), uid, gid }
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
}

function unprivileged(accounts: Accounts): Account {
  for (const name of CANDIDATES) {
    const account = accounts.get(name)
    if (account !== undefined && account.uid !== 0) return account
  }
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `PostgreSQL does not run as root, and none of the accounts ${CANDIDATES.join(', ')} exists in /etc/passwd.`,
    {
      remedy: 'Run as another user, add one of these accounts, or set DATABASE_URL to a server of your own.',
    },
  )
}

type Accounts = ReadonlyMap<string, Account>

function parsePasswd(text: string): Accounts {
  const accounts = new Map<string, Account>()
  for (const line of text.split('\n')) {
    const [name, , uid, gid] = line.split(':')
    if (name === undefined || uid === undefined || gid === undefined || accounts.has(name)) continue
    // macOS writes the id of nobody as -2; the kernel uses the unsigned value.
    accounts.set(name, { name, uid: Number(uid) >>> 0, gid: Number(gid) >>> 0 })
  }
  return accounts
}

/** Whether the account has these permission bits (4 read, 1 execute) on `path` and can traverse every parent. */
export async function canReach(account: Account, path: string, bits: number): Promise<boolean> {
  let current = await realpath(path)
  let required = bits
  for (;;) {
    if (!(await hasBits(account, current, required))) return false
    const parent = dirname(current)
    if (parent === current) return true
    current = parent
    required = 1
  }
}

async function hasBits(account: Account, path: string, bits: number): Promise<boolean> {
  const { mode, uid, gid } = await stat(path)
  const shift = uid === account.uid ? 6 : gid === account.gid ? 3 : 0
  return ((mode >> shift) & bits) === bits
}

/** The directory in which root puts files that the server's account could not reach at their own path. */
export const REACHABLE_ROOT = '/var/lib/leasehold'

/** Creates a directory under the reachable root that every account can enter, whatever the umask. */
export async function makeReachable(directory: string): Promise<void> {
  await mkdir(directory, { recursive: true })
  for (const path of [REACHABLE_ROOT, directory]) await chmod(path, 0o755)
}
