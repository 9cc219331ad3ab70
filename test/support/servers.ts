import { execFile } from 'node:child_process'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'

/**
 * The PostgreSQL servers that run on the data in this directory, one process each. A backend has the command line of its
 * server until it has heard who connects, for which 100 ms were seen: it is known by its parent.
 */
export async function serversOf(directory: string): Promise<number[]> {
  const found = await processesOn(directory)
  const pids = new Set(found.map(({ pid }) => pid))
  return found.filter(({ parent }) => !pids.has(parent)).map(({ pid }) => pid)
}

/** Those with the command line of a server on this data. */
export async function processesOn(directory: string): Promise<Process[]> {
  const data = join(directory, '.leasehold', 'data')
  return (await processes()).filter(({ command }) => command.includes(`postgres -D ${data} `))
}

export interface Process {
  readonly pid: number
  readonly parent: number
  readonly command: string
}

/** A minimal Linux has no `ps`, and macOS has no /proc. */
async function processes(): Promise<Process[]> {
  if (process.platform !== 'linux') {
    const { stdout } = await promisify(execFile)('ps', ['-axww', '-o', 'pid=,ppid=,command='])
    return stdout.split('\n').map((line) => {
      const [pid, parent] = line.trim().split(/\s+/)
      return { pid: Number(pid), parent: Number(parent), command: line }
    })
  }
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  return Promise.all(
    pids.map(async (pid) => {
      // It may end while it is being looked at.
      const read = async (name: string): Promise<string> =>
        readFile(`/proc/${pid}/${name}`, 'utf8').catch(() => '')
      const parent = Number(/^PPid:\s*(\d+)$/m.exec(await read('status'))?.[1])
      return { pid: Number(pid), parent, command: (await read('cmdline')).replaceAll('\0', ' ') }
    }),
  )
}
