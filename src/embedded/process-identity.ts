import { execFile } from 'node:child_process'
import { readFile, stat } from 'node:fs/promises'
import { promisify } from 'node:util'

import { hasCode } from './system-errors.ts'

const run = promisify(execFile)

/** A process id is used again and again; together with the start it names one process. */
export interface ProcessIdentity {
  readonly pid: number
  /** Opaque, without blanks. */
  readonly startedAt: string
}

/** The process that has this id now; a zombie is gone, although a signal would still find it. */
export async function identifyProcess(pid: number): Promise<ProcessIdentity | undefined> {
  const sight = await look(pid)
  return sight === undefined || isDead(sight) ? undefined : { pid, startedAt: sight.startedAt }
}

export async function isRunning(identity: ProcessIdentity): Promise<boolean> {
  return (await identifyProcess(identity.pid))?.startedAt === identity.startedAt
}

/** Dead, but not collected by its parent; in a container nobody may ever do that. */
export async function isZombie(pid: number): Promise<boolean> {
  return isDead(await look(pid))
}

interface Sight {
  readonly state: string
  readonly startedAt: string
}

async function look(pid: number): Promise<Sight | undefined> {
  if (!Number.isSafeInteger(pid) || pid <= 0) return undefined
  return process.platform === 'linux' ? fromProc(pid) : fromPs(pid)
}

function isDead(sight: Sight | undefined): boolean {
  return sight !== undefined && /^[ZX]/.test(sight.state)
}

async function fromProc(pid: number): Promise<Sight | undefined> {
  const stat = await readOrNothing(`/proc/${pid}/stat`)
  if (stat === undefined) return undefined
  // The second field is the program's name in brackets and may contain anything; the rest are numbers.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const boot = (await readOrNothing('/proc/sys/kernel/random/boot_id')) ?? ''
  return { state: fields[0] ?? '', startedAt: `${boot.slice(0, 8)}.${fields[19] ?? ''}` }
}

async function fromPs(pid: number): Promise<Sight | undefined> {
  const line = await ps(pid, ['stat=', 'lstart='])
  const [state, ...startedAt] = line.split(/\s+/)
  return state === undefined || state === '' ? undefined : { state, startedAt: startedAt.join('_') }
}

/** `ps` says nothing and exits with 1 when there is no such process. */
async function ps(pid: number, columns: readonly string[]): Promise<string> {
  // One -o each: `=` takes the rest of its argument as a heading.
  const args = ['-ww', '-p', String(pid), ...columns.flatMap((column) => ['-o', column])]
  try {
    const { stdout } = await run('ps', args, { env: { ...process.env, LC_ALL: 'C' } })
    return stdout.trim()
  } catch (error) {
    if (typeof error === 'object' && error !== null && 'code' in error && error.code === 1) return ''
    throw error
  }
}

/** What the system shows of a live process: is it the postmaster of this data directory? */
export interface Evidence {
  readonly verdict: 'postmaster' | 'unrelated' | 'unknown'
  readonly description: string
}

export async function examineProcess(pid: number, data: string): Promise<Evidence> {
  const command = await commandOf(pid)
  const description = `process ${pid} (${command === '' ? 'command unknown' : command})`
  // Anywhere in the command: a path may hold blanks, and a wrong "unrelated" would cost the data.
  const mentionsPostgres = /postgres|postmaster/i.test(command)
  // A postmaster works in its data directory from before it writes the pid file until it ends.
  const worksInData = process.platform === 'linux' ? await hasWorkingDirectory(pid, data) : undefined
  if (worksInData === false) return { verdict: 'unrelated', description }
  if (worksInData === true) return { verdict: mentionsPostgres ? 'postmaster' : 'unknown', description }
  if (command !== '' && !mentionsPostgres) return { verdict: 'unrelated', description }
  return { verdict: command.includes(data) ? 'postmaster' : 'unknown', description }
}

async function commandOf(pid: number): Promise<string> {
  if (process.platform !== 'linux') return ps(pid, ['command='])
  const text = (await readOrNothing(`/proc/${pid}/cmdline`)) ?? ''
  return text.replaceAll('\0', ' ').trim()
}

/** By device and inode, because the same directory may have another path over there; `undefined`: not for us to see. */
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

async function readOrNothing(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    if (hasCode(error, 'ENOENT', 'ESRCH', 'EACCES', 'EPERM')) return undefined
    throw error
  }
}
