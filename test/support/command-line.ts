import { runProgram } from '../../src/cli/program.ts'
import { type Terminal } from '../../src/cli/run.ts'

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
