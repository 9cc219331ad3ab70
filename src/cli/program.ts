import { Command, CommanderError } from 'commander'
import { LeaseholdError } from '../errors.ts'
import { createLog, withoutUrlPasswords, type Logger } from '../observe/index.ts'
import {
  DESCRIPTIONS,
  flagOf,
  loadSettings,
  TIMING_NAMES,
  type LoadedSettings,
  type SettingName,
} from '../settings/index.ts'
import { runMigrate } from './migrate.ts'
import { status } from './status.ts'
import { up } from './up.ts'
import { work } from './work.ts'
import { packageVersion } from '../version.ts'

/** What a command touches of the process, so that nothing else does. */
export interface Terminal {
  readonly environment: Readonly<Record<string, string | undefined>>
  readonly workingDirectory: string
  /** Whether a person reads stderr. */
  readonly isTerminal: boolean
  /** Answers go to stdout; the log and errors go to stderr. */
  readonly out: (text: string) => void
  readonly err: (text: string) => void
}

interface Run {
  readonly loaded: LoadedSettings
  readonly log: Logger
  readonly version: string
  readonly print: (text: string) => void
  /** What is an option of one command and no setting. */
  readonly flags: Readonly<Record<string, unknown>>
}

const USAGE_ERROR = 2

const DATABASE_SETTINGS = [
  'databaseUrl',
  'directory',
  'schema',
  'databaseWaitMs',
  'logLevel',
  'logFormat',
] as const
const UP_SETTINGS = [...DATABASE_SETTINGS, 'host', 'port', ...TIMING_NAMES] as const

/** Runs one command line and returns its exit code: 0 done, 1 failed, 2 wrongly called. */
export async function runProgram(args: readonly string[], terminal: Terminal): Promise<number> {
  const version = packageVersion()
  let code = 0
  const program = new Command('leasehold')
    .description('Time-bounded, fenced leases on the rows of any PostgreSQL table.')
    .version(version)
    .exitOverride()
    .configureOutput({ writeOut: terminal.out, writeErr: terminal.err })
    .addHelpText('after', SETTINGS_HELP)

  const command = (
    name: string,
    description: string,
    settings: readonly SettingName[],
    act: (run: Run) => Promise<number>,
  ): Command => {
    // An option without a default is absent from the flags, and the next source gets its turn.
    const added = program.command(name).description(description)
    for (const setting of settings) added.option(`${flagOf(setting)} <value>`, DESCRIPTIONS[setting].purpose)
    added.action(async (flags: Record<string, unknown>) => {
      code = await act(await prepare(flags, version, terminal))
    })
    return added
  }
  command(
    'up',
    'run everything in one process; without a database URL, on an embedded PostgreSQL',
    UP_SETTINGS,
    up,
  )
  command(
    'work',
    'run the workers of leasehold.config and the reaper, for production',
    UP_SETTINGS,
    async (run) => work({ ...run, ...workFlags(run.flags) }),
  )
    .option('--only <names>', 'only these workers, separated by commas; the reaper is one of them')
    .option('--no-http', 'no /livez, /readyz and /metrics')
  command('status', 'show who works and what waits', DATABASE_SETTINGS, status)
  command('migrate', 'bring the schema to the version of this release', DATABASE_SETTINGS, runMigrate)

  try {
    await program.parseAsync(args, { from: 'user' })
    return code
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : USAGE_ERROR
    terminal.err(`${withoutUrlPasswords(describe(error))}\n`)
    return 1
  }
}

const SETTINGS_HELP = `
Every option can also be set in the environment (--port as LEASEHOLD_PORT, --database-url as
DATABASE_URL) or in leasehold.config.js, .mjs or .ts (as port, databaseUrl); options come first.`

async function prepare(flags: Record<string, unknown>, version: string, terminal: Terminal): Promise<Run> {
  const loaded = await loadSettings({
    flags,
    environment: terminal.environment,
    workingDirectory: terminal.workingDirectory,
    terminal: terminal.isTerminal,
  })
  const { logLevel, logFormat } = loaded.settings
  const log = createLog({ level: logLevel, format: logFormat, write: terminal.err })
  return { loaded, log, version, print: terminal.out, flags }
}

function workFlags({ only, http }: Run['flags']): { only: string | undefined; http: boolean } {
  return { only: typeof only === 'string' ? only : undefined, http: http !== false }
}

/** An error we threw on purpose says all in its message; of any other the stack is wanted. */
function describe(error: unknown): string {
  if (error instanceof LeaseholdError) return `leasehold: ${error.code}: ${error.message}`
  return `leasehold: unexpected error\n${error instanceof Error ? (error.stack ?? error.message) : String(error)}`
}
