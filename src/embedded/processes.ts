import { execFile, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFile, stat } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'

import { hasCode, LeaseholdError } from '../errors.ts'
import { within } from '../timeout.ts'

const run = promisify(execFile)

/** Process ids are reused. Together with its start time an id identifies one process. */
export interface ProcessIdentity {
  readonly pid: number
  /** An opaque text without blanks. */
  readonly startedAt: string
}

/** The process that has this id now. A zombie counts as ended, although it still receives signals. */
export async function identifyProcess(pid: number): Promise<ProcessIdentity | undefined> {
  const found = await readProcess(pid)
  return found === undefined || isDead(found) ? undefined : { pid, startedAt: found.startedAt }
}

export async function isRunning(identity: ProcessIdentity): Promise<boolean> {
  return (await identifyProcess(identity.pid))?.startedAt === identity.startedAt
}

/** Whether the process has ended but its parent has not collected it. In a container that may never happen. */
export async function isZombie(pid: number): Promise<boolean> {
  return isDead(await readProcess(pid))
}

interface ProcessStatus {
  readonly state: string
  readonly startedAt: string
}

async function readProcess(pid: number): Promise<ProcessStatus | undefined> {
  if (!Number.isSafeInteger(pid) || pid <= 0) return undefined
  return process.platform === 'linux' ? fromProc(pid) : fromPs(pid)
}

function isDead(status: ProcessStatus | undefined): boolean {
  return status !== undefined && /^[ZX]/.test(status.state)
}

async function fromProc(pid: number): Promise<ProcessStatus | undefined> {
  const stat = await readIfPresent(`/proc/${pid}/stat`)
  if (stat === undefined) return undefined
  // The second field is the program's name in brackets and may contain any character, so the last bracket counts.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const boot = (await readIfPresent('/proc/sys/kernel/random/boot_id')) ?? ''
  return { state: fields[0] ?? '', startedAt: `${boot.slice(0, 8)}.${fields[19] ?? ''}` }
}

async function fromPs(pid: number): Promise<ProcessStatus | undefined> {
  const line = await ps(pid, ['stat=', 'lstart='])
  const [state, ...startedAt] = line.split(/\s+/)
  return state === undefined || state === '' ? undefined : { state, startedAt: startedAt.join('_') }
}

/** Without such a process, `ps` prints nothing and exits with 1. */
async function ps(pid: number, columns: readonly string[]): Promise<string> {
  // One -o for each column, because `=` takes the rest of its argument as the heading.
  const args = ['-ww', '-p', String(pid), ...columns.flatMap((column) => ['-o', column])]
  try {
    const { stdout } = await run('ps', args, { env: { ...process.env, LC_ALL: 'C' } })
    return stdout.trim()
  } catch (error) {
    if (typeof error === 'object' && error !== null && 'code' in error && error.code === 1) return ''
    throw error
  }
}

/** What the system shows about a live process: whether it is the postmaster of this data directory. */
export interface Evidence {
  readonly verdict: 'postmaster' | 'unrelated' | 'unknown'
  readonly description: string
}

export async function examineProcess(pid: number, data: string): Promise<Evidence> {
  const command = await commandOf(pid)
  const description = `process ${pid} (${command === '' ? 'command unknown' : command})`
  // Anywhere in the command, because a path may contain blanks, and a wrong "unrelated" would destroy the data.
  const mentionsPostgres = /postgres|postmaster/i.test(command)
  // The data directory is a postmaster's working directory from before it writes the pid file until it ends.
  const worksInData = process.platform === 'linux' ? await hasWorkingDirectory(pid, data) : undefined
  if (worksInData === false) return { verdict: 'unrelated', description }
  if (worksInData === true) return { verdict: mentionsPostgres ? 'postmaster' : 'unknown', description }
  if (command !== '' && !mentionsPostgres) return { verdict: 'unrelated', description }
  return { verdict: command.includes(data) ? 'postmaster' : 'unknown', description }
}

async function commandOf(pid: number): Promise<string> {
  if (process.platform !== 'linux') return ps(pid, ['command='])
  const text = (await readIfPresent(`/proc/${pid}/cmdline`)) ?? ''
  return text.replaceAll('\0', ' ').trim()
}

/**
 * Compares device and inode, because the directory may have another path in that process. Returns `undefined` if we may
 * not see it.
 */
async function hasWorkingDirectory(pid: number, directory: string): Promise<boolean | undefined> {
  try {
    const theirs = await stat(`/proc/${pid}/cwd`)
    const wanted = await stat(directory)
    return theirs.dev === wanted.dev && theirs.ino === wanted.ino
  } catch (error) {
    if (hasCode(error, 'EACCES', 'EPERM', 'ENOENT', 'ESRCH')) return undefined
    throw error
  }
}

async function readIfPresent(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    if (hasCode(error, 'ENOENT', 'ESRCH', 'EACCES', 'EPERM')) return undefined
    throw error
  }
}

const POLL_MS = 25

/**
 * First a fast shutdown, which ends the sessions and writes a checkpoint; then an immediate shutdown, which leaves the
 * recovery to the next start. Neither loses committed data. The postmaster ends after its last child.
 */
const SHUTDOWN_STEPS = [
  { signal: 'SIGINT', waitMs: 30_000 },
  { signal: 'SIGQUIT', waitMs: 15_000 },
] as const

export interface ServerProcess extends ProcessIdentity {
  /** Present if this process started the server. An adopted server is not our child. */
  readonly child?: ChildProcess
}

/** Shuts the server down and returns when its process has ended. */
export async function terminate(server: ServerProcess): Promise<void> {
  for (const { signal, waitMs } of SHUTDOWN_STEPS) {
    if (!(await isRunning(server))) return
    sendSignal(server.pid, signal)
    if (await endsWithin(server, waitMs)) return
  }
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `PostgreSQL (process ${server.pid}) did not end, neither by a fast nor by an immediate shutdown.`,
    { remedy: 'Find the process with `ps` and end it by hand.' },
  )
}

function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!hasCode(error, 'ESRCH')) throw error
  }
}

async function endsWithin({ child, ...identity }: ServerProcess, waitMs: number): Promise<boolean> {
  if (child !== undefined) {
    if (child.exitCode !== null || child.signalCode !== null) return true
    child.ref()
    try {
      return await within(waitMs, once(child, 'exit'))
    } finally {
      child.unref()
    }
  }
  const deadline = performance.now() + waitMs
  while (await isRunning(identity)) {
    if (performance.now() > deadline) return false
    await delay(POLL_MS)
  }
  return true
}
