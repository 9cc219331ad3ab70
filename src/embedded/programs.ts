import { spawn, type StdioOptions } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { text } from 'node:stream/consumers'

import type { Account } from './account.ts'

/**
 * What a PostgreSQL program is started with. PG* variables of the caller would redirect it, and a
 * locale the machine lacks would stop it; the working directory may be out of the account's reach.
 */
function surroundings(account: Account | undefined) {
  const environment: NodeJS.ProcessEnv = { LC_ALL: 'C' }
  for (const name of ['PATH', 'TZ', 'TMPDIR']) {
    if (process.env[name] !== undefined) environment[name] = process.env[name]
  }
  const identity = account === undefined ? {} : { uid: account.uid, gid: account.gid }
  return { cwd: '/', env: environment, ...identity }
}

export function spawnProgram(
  program: string,
  args: readonly string[],
  account: Account | undefined,
  how: { readonly stdio: StdioOptions; readonly detached: boolean },
): ChildProcess {
  return spawn(program, args, { ...surroundings(account), ...how })
}

export type ProgramResult =
  | { readonly outcome: 'succeeded' }
  | { readonly outcome: 'failed'; readonly status: string; readonly output: string }

/** Runs a program to its end; how it ended is a value. */
export async function runProgram(
  program: string,
  args: readonly string[],
  account: Account | undefined,
): Promise<ProgramResult> {
  const child = spawn(program, args, { ...surroundings(account), stdio: ['ignore', 'pipe', 'pipe'] })
  const ended = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('close', (code, signal) => resolve(signal ?? `exit code ${code}`))
  })
  const [status, out, err] = await Promise.all([ended, text(child.stdout), text(child.stderr)])
  return status === 'exit code 0'
    ? { outcome: 'succeeded' }
    : { outcome: 'failed', status, output: `${out}${err}`.trim() }
}
