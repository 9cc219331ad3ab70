import { afterAll, beforeAll, expect, onTestFinished, vi } from 'vitest'
import { runProgram } from '../../src/cli/program.ts'
import type { Terminal } from '../../src/cli/command.ts'
import { type Database, openDatabase } from '../../src/postgres/index.ts'
import { useDatabase, openSession } from './database.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'
import type { Processes, TestProcess } from './processes.ts'

export interface Called {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
  /** The questions that the user was asked. */
  readonly asked: readonly string[]
}

export interface CallOptions {
  readonly databaseUrl?: string
  readonly workingDirectory: string
  readonly width?: number
  readonly input?: string
  /** The user's answer to every question. Without it there is no interactive user. */
  readonly answer?: string
}

/** Runs one command line in this process, as `main.ts` does. */
export async function callLeasehold(args: readonly string[], options: CallOptions): Promise<Called> {
  const written = { stdout: '', stderr: '' }
  const asked: string[] = []
  const { answer } = options
  const terminal: Terminal = {
    environment: { DATABASE_URL: options.databaseUrl ?? '', LEASEHOLD_LOG_LEVEL: 'warn' },
    workingDirectory: options.workingDirectory,
    isTerminal: answer !== undefined,
    hasTerminal: false,
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
  /** The working directory. It exists from the first test on. */
  readonly directory: () => string
  readonly call: (args?: readonly string[], options?: Partial<CallOptions>) => Promise<Called>
  /** The one document that `--json` prints. */
  readonly json: (args: readonly string[], options?: Partial<CallOptions>) => Promise<unknown>
}

/** Calls one command, with a database and a directory of the test file's own. */
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

const POLLING = { timeout: 120_000, interval: 20 }

/** A command that changes many rows and waits for one of them, because another session has locked it. */
export interface HaltedCommand {
  readonly process: TestProcess
  /** Releases the lock, so that the command continues. */
  readonly letGo: () => Promise<void>
  /** Terminates the waiting session of the command. */
  readonly endSession: () => Promise<void>
  /** After the command was killed: releases the lock and waits until its statements have ended. */
  readonly letGoOfKilled: () => Promise<void>
}

/** Runs `dist/cli/main.js` until it waits for the row of this table with this id. */
export function useHaltedCommands(
  { spawnNode }: Processes,
  { db, url, directory }: CommandLine,
  table: string,
): (args: readonly string[], id: number) => Promise<HaltedCommand> {
  async function sessions(condition: string): Promise<number> {
    const { rows } = await db.query<{ count: number }>({
      text: `select count(*)::int as count from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and ${condition}`,
    })
    return rows[0]?.count ?? 0
  }

  return async (args, id) => {
    const holder = await openSession(url)
    await holder.query('begin')
    await holder.query(`select from ${table} where id = $1 for update`, [id])

    const env = { DATABASE_URL: url, LEASEHOLD_PORT: '' }
    const process = spawnNode('dist/cli/main.js', args, { cwd: directory(), env })
    onTestFinished(async () => void (await process.kill('SIGKILL')))
    const waiting = `wait_event_type = 'Lock' and query like '%for update%'`
    await vi.waitFor(async () => expect(await sessions(waiting)).toBe(1), POLLING)

    const letGo = async (): Promise<void> => void (await holder.query('rollback'))
    return {
      process,
      letGo,
      async endSession() {
        await db.query({
          text: `select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'`,
        })
      },
      async letGoOfKilled() {
        await letGo()
        await vi.waitFor(async () => expect(await sessions(`state = 'active'`)).toBe(0), POLLING)
      },
    }
  }
}
