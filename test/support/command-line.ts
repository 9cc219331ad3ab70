import { afterAll, beforeAll } from 'vitest'
import { runProgram } from '../../src/cli/program.ts'
import type { Terminal } from '../../src/cli/command.ts'
import { type Database, openDatabase } from '../../src/postgres/index.ts'
import { useDatabase } from './database.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'

export interface Called {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
  /** What the person at the terminal was asked. */
  readonly asked: readonly string[]
}

export interface CallOptions {
  readonly databaseUrl?: string
  readonly workingDirectory: string
  readonly width?: number
  readonly input?: string
  /** What the person at the terminal answers; without it there is none. */
  readonly answer?: string
}

/** Runs one command line in this process, as `main.ts` would. */
export async function callLeasehold(args: readonly string[], options: CallOptions): Promise<Called> {
  const written = { stdout: '', stderr: '' }
  const asked: string[] = []
  const { answer } = options
  const terminal: Terminal = {
    environment: { DATABASE_URL: options.databaseUrl ?? '', LEASEHOLD_LOG_LEVEL: 'warn' },
    workingDirectory: options.workingDirectory,
    isTerminal: answer !== undefined,
    out: (text) => (written.stdout += text),
    err: (text) => (written.stderr += text),
    width: options.width,
    input: async () => Promise.resolve(options.input ?? ''),
    ask:
      answer === undefined
        ? undefined
        : async (question) => {
            asked.push(question)
            return Promise.resolve(answer)
          },
    account: () => 'the account',
  }
  const code = await runProgram(args, terminal)
  return { code, ...written, asked }
}

export interface CommandLine {
  readonly url: string
  readonly db: Database
  /** Where it runs: made before the first test. */
  readonly directory: () => string
  readonly call: (args?: readonly string[], options?: Partial<CallOptions>) => Promise<Called>
  /** The document that `--json` prints: exactly one, and nothing beside it. */
  readonly json: (args: readonly string[], options?: Partial<CallOptions>) => Promise<unknown>
}

/** Calls of one command, with a database and a directory of this file's own. */
export function useCommandLine(...command: readonly string[]): CommandLine {
  const { url } = useDatabase()
  const db = openDatabase({ url })
  let directory = ''
  beforeAll(async () => {
    directory = await temporaryDirectory()
  })
  afterAll(async () => {
    await db.close()
    await removeDirectory(directory)
  })
  const call: CommandLine['call'] = async (args = [], options) =>
    callLeasehold([...command, ...args], { databaseUrl: url, workingDirectory: directory, ...options })
  return {
    url,
    db,
    directory: () => directory,
    call,
    json: async (args, options) => JSON.parse((await call([...args, '--json'], options)).stdout) as unknown,
  }
}
