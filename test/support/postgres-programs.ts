import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { access, constants, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { buffer, text } from 'node:stream/consumers'

/** Client programs, and the server that came with them: pg_dump refuses a server that is newer than itself. */
export interface PostgresPrograms {
  readonly pgDump: string
  readonly pgRestore: string
  readonly initdb: string
  readonly postgres: string
}

/** Where Debian keeps the programs of each major version. The embedded server brings no client programs. */
const HOME = '/usr/lib/postgresql'

const MISSING = `${HOME} has no pg_dump with its server. To run these tests: apt-get install postgresql`

/**
 * Undefined where they are not installed: the tests that need them are skipped, and the reason is shown; with
 * LEASEHOLD_REQUIRE_BROKERS=1, as in CI, that is an error.
 */
export async function findClientPrograms(): Promise<PostgresPrograms | undefined> {
  const versions = (await readdir(HOME).catch(() => [])).toSorted((a, b) => Number(b) - Number(a))
  for (const version of versions) {
    const at = (name: string): string => join(HOME, version, 'bin', name)
    const found = {
      pgDump: at('pg_dump'),
      pgRestore: at('pg_restore'),
      initdb: at('initdb'),
      postgres: at('postgres'),
    }
    const areThere = await Promise.all(
      Object.values(found).map(async (path) =>
        access(path, constants.X_OK).then(
          () => true,
          () => false,
        ),
      ),
    )
    if (areThere.every(Boolean)) return found
  }
  if (process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1') throw new Error(MISSING)
  process.stderr.write(`skipped: ${MISSING}\n`)
  return undefined
}

/** Runs the program to its end and returns what it wrote. */
export async function runClientProgram(
  program: string,
  args: readonly string[],
  input?: Buffer,
): Promise<Buffer> {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'] })
  const ended = once(child, 'close')
  child.stdin.end(input)
  const [output, errors, [code]] = await Promise.all([buffer(child.stdout), text(child.stderr), ended])
  if (code !== 0) throw new Error(`${program} ended with ${String(code)}: ${errors}`)
  return output
}
