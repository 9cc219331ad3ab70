import { execFile } from 'node:child_process'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'

/** The processes of the PostgreSQL servers that run on the data in this directory. */
export async function serversOf(directory: string): Promise<number[]> {
  const data = join(directory, '.leasehold', 'data')
  const found = (await processes()).filter(({ command }) => command.includes(`postgres -D ${data} `))
  return found.map(({ pid }) => pid)
}

interface Process {
  readonly pid: number
  readonly command: string
}

/** A minimal Linux has no `ps`, and macOS has no /proc. */
async function processes(): Promise<Process[]> {
  if (process.platform !== 'linux') {
    const { stdout } = await promisify(execFile)('ps', ['-axww', '-o', 'pid=,command='])
    return stdout.split('\n').map((line) => ({ pid: Number.parseInt(line, 10), command: line }))
  }
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  return Promise.all(
    pids.map(async (pid) => {
      // It may end while it is being looked at.
      const text = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')
      return { pid: Number(pid), command: text.replaceAll('\0', ' ') }
    }),
  )
}
