import { Command, CommanderError, Option } from 'commander'
import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import { createLog, withoutUrlPasswords } from '../observe/index.ts'
import { DESCRIPTIONS, flagOf, loadSettings, TIMING_NAMES } from '../config/index.ts'
import { runMigrate } from './migrate.ts'
import { addOutboxCommands } from './outbox/commands.ts'
import { addSyncCommands } from './sync/commands.ts'
import { addReconcileCommands } from './reconcile/commands.ts'
import { addWebhookCommands } from './webhooks/commands.ts'
import { DATABASE_SETTINGS, type Define, WEBHOOK_SETTINGS } from './define.ts'
import { type Run, type Terminal, UsageError } from './run.ts'
import { status } from './status.ts'
import { up } from './up.ts'
import { work } from './work.ts'
import { packageVersion } from '../version.ts'

const USAGE_ERROR = 2

const UP_SETTINGS = [...DATABASE_SETTINGS, 'host', 'port', ...TIMING_NAMES, ...WEBHOOK_SETTINGS] as const

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

  const define: Define = (parent, usage, description, settings, act, addOptions) => {
    const added = parent.command(usage).description(description)
    addOptions?.(added)
    // An option without a default is absent from the flags, and the next source gets its turn.
    for (const setting of settings) {
      const { purpose } = DESCRIPTIONS[setting]
      added.addOption(new Option(`${flagOf(setting)} <value>`, purpose).helpGroup('Settings:'))
    }
    added.action(async () => {
      code = await act(await prepare(added, version, terminal))
    })
  }
  define(
    program,
    'up',
    'run everything in one process; without a database URL, on an embedded PostgreSQL',
    UP_SETTINGS,
    async (run) => up({ ...run, demo: run.flags['demo'] === true }),
    (command) => command.option('--demo', 'with sample producers, and a line that shows how it goes'),
  )
  define(
    program,
    'work',
    'run the workers of leasehold.config and the reaper, for production',
    UP_SETTINGS,
    async (run) => work({ ...run, ...workFlags(run.flags) }),
    (command) =>
      command
        .option('--only <names>', 'only these workers, separated by commas; the reaper is one of them')
        .option('--no-http', 'no /livez, /readyz and /metrics'),
  )
  define(program, 'status', 'show who works and what waits', DATABASE_SETTINGS, status, (command) =>
    command.option('--json', 'one JSON document instead of text, for scripts'),
  )
  addOutboxCommands(program, define)
  addWebhookCommands(program, define)
  addReconcileCommands(program, define)
  addSyncCommands(program, define)
  define(program, 'migrate', 'bring the schema to the version of this release', DATABASE_SETTINGS, runMigrate)

  try {
    await program.parseAsync(args, { from: 'user' })
    return code
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : USAGE_ERROR
    terminal.err(`${withoutUrlPasswords(describe(error))}\n`)
    return isWronglyCalled(error) ? USAGE_ERROR : 1
  }
}

const SETTINGS_HELP = `
Every option can also be set in the environment (--port as LEASEHOLD_PORT, --database-url as
DATABASE_URL) or in leasehold.config.js, .mjs or .ts (as port, databaseUrl); options come first.`

async function prepare(command: Command, version: string, terminal: Terminal): Promise<Run> {
  const flags: Record<string, unknown> = command.opts()
  const loaded = await loadSettings({
    flags,
    environment: terminal.environment,
    workingDirectory: terminal.workingDirectory,
    terminal: terminal.isTerminal,
  })
  const { logLevel, logFormat } = loaded.settings
  const log = createLog({ level: logLevel, format: logFormat, write: terminal.err })
  return { loaded, log, version, print: terminal.out, flags, args: command.args, terminal }
}

function workFlags({ only, http }: Run['flags']): { only: string | undefined; http: boolean } {
  return { only: typeof only === 'string' ? only : undefined, http: http !== false }
}

function isWronglyCalled(error: unknown): boolean {
  return error instanceof UsageError || isLeaseholdError(error, 'REQUEST_INVALID')
}

/** An error we threw on purpose says all in its message; of any other the stack is wanted. */
function describe(error: unknown): string {
  if (error instanceof UsageError) return `error: ${error.message}`
  if (error instanceof LeaseholdError) return `leasehold: ${error.code}: ${error.message}`
  return `leasehold: unexpected error\n${error instanceof Error ? (error.stack ?? error.message) : String(error)}`
}
