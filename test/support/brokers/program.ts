import { access, constants, realpath } from 'node:fs/promises'
import { basename, delimiter, dirname, join } from 'node:path'

/** Debian keeps servers where the PATH of an ordinary user does not lead. */
const ALSO_IN = ['/usr/local/sbin', '/usr/sbin', '/sbin']

/** Where the program is, or `undefined` where it is not installed. */
export async function findProgram(name: string): Promise<string | undefined> {
  for (const directory of [...(process.env['PATH'] ?? '').split(delimiter), ...ALSO_IN]) {
    const candidate = join(directory, name)
    const found = await access(candidate, constants.X_OK).then(
      () => true,
      () => false,
    )
    if (directory !== '' && found) return candidate
  }
  return undefined
}

/** Debian's rabbitmq-server changes its account and drops the environment; what it wraps stands beside it. */
export async function unwrapped(program: string): Promise<string> {
  const real = await realpath(program)
  return basename(real) === 'rabbitmq-script-wrapper' ? join(dirname(real), 'rabbitmq-server') : program
}
