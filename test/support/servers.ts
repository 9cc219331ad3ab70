import { execFile } from 'node:child_process'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'

/** The command lines of the PostgreSQL servers that run on the data in this directory. */
export async function serversOf(directory: string): Promise<string[]> {
  const data = join(directory, '.leasehold', 'data')
  return (await commandLines()).filter((line) => line.includes(`postgres -D ${data} `))
}

/** A minimal Linux has no `ps`, and macOS has no /proc. */
async function commandLines(): Promise<string[]> {
  if (process.platform !== 'linux') {
    const { stdout } = await promisify(execFile)('ps', ['-axww', '-o', 'command='])
    return stdout.split('\n')
  }
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  // A process may end while it is being looked at.
  const texts = pids.map(async (pid) => readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => ''))
  return (await Promise.all(texts)).map((text) => text.replaceAll('\0', ' '))
}
