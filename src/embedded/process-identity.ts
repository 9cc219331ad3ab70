import { execFile } from 'node:child_process'
import { readFile, stat } from 'node:fs/promises'
import { basename } from 'node:path'
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
  if (!Number.isSafeInteger(pid) || pid <= 0) return undefined
  const found = process.platform === 'linux' ? await fromProc(pid) : await fromPs(pid)
  return found === undefined || /^[ZX]/.test(found.state) ? undefined : { pid, startedAt: found.startedAt }
}

export async function isRunning(identity: ProcessIdentity): Promise<boolean> {
  return (await identifyProcess(identity.pid))?.startedAt === identity.startedAt
}

async function fromProc(pid: number): Promise<{ state: string; startedAt: string } | undefined> {
  const stat = await readOrNothing(`/proc/${pid}/stat`)
  if (stat === undefined) return undefined
  // The second field is the program's name in brackets and may contain anything; the rest are numbers.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const boot = (await readOrNothing('/proc/sys/kernel/random/boot_id')) ?? ''
  return { state: fields[0] ?? '', startedAt: `${boot.slice(0, 8)}.${fields[19] ?? ''}` }
}

async function fromPs(pid: number): Promise<{ state: string; startedAt: string } | undefined> {
  const line = await ps(pid, 'stat=,lstart=')
  const [state, ...startedAt] = line.split(/\s+/)
  return state === undefined || state === '' ? undefined : { state, startedAt: startedAt.join('_') }
}

/** `ps` says nothing and exits with 1 when there is no such process. */
async function ps(pid: number, columns: string): Promise<string> {
  try {
    const { stdout } = await run('ps', ['-p', String(pid), '-o', columns], {
      env: { ...process.env, LC_ALL: 'C' },
    })
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
  const description = `process ${pid} (${command.join(' ') || 'command unknown'})`
  const looksLikePostgres = /^(postgres|postmaster)\b/.test(basename(command[0] ?? ''))
  // A postmaster works in its data directory from before it writes the pid file until it ends.
  const worksInData = process.platform === 'linux' ? await hasWorkingDirectory(pid, data) : undefined
  if (worksInData === false) return { verdict: 'unrelated', description }
  if (worksInData === true) return { verdict: looksLikePostgres ? 'postmaster' : 'unknown', description }
  if (command.length > 0 && !looksLikePostgres) return { verdict: 'unrelated', description }
  return { verdict: command.includes(data) ? 'postmaster' : 'unknown', description }
}

async function commandOf(pid: number): Promise<string[]> {
  if (process.platform === 'linux') {
    const text = (await readOrNothing(`/proc/${pid}/cmdline`)) ?? ''
    return text.split('\0').filter((word) => word !== '')
  }
  return (await ps(pid, 'command=')).split(/\s+/).filter((word) => word !== '')
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
