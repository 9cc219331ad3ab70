/** The command tree: every command of `leasehold`, its help, its errors and its exit code. */
import { Command, CommanderError, Option } from 'commander'
import { loadSettings } from '../config/load.ts'
import { DESCRIPTIONS, flagOf, TIMING_NAMES } from '../config/schema.ts'
import { isLeaseholdError, LeaseholdError, withoutUrlPasswords } from '../errors.ts'
import { createLog } from '../observe/log.ts'
import { AUDIT } from '../operations/audit-entries.ts'
import { packageVersion } from '../package-files.ts'
import {
  DATABASE_SETTINGS,
  type Define,
  type Run,
  type Terminal,
  UsageError,
  WEBHOOK_SETTINGS,
} from './command.ts'
import { printUrl, recogniseEmbedded } from './database.ts'
import { addCompletionCommand } from './completion.ts'
import { JSON_FLAG } from './flags.ts'
import { addOperations } from './operations.ts'
import { printableLines } from './output.ts'
import { addWatchFlags } from './watch.ts'

const EXIT_FAILED = 1
const EXIT_USAGE_ERROR = 2

/** Of the processes that serve the dashboard: `up` and `serve`. */
const DASHBOARD_SETTINGS = ['instanceName', 'instanceColor', 'portalOrigins'] as const

const PROCESS_SETTINGS = [
  ...DATABASE_SETTINGS,
  'listenUrl',
  'host',
  'port',
  'metricsHost',
  'metricsPort',
  'workerId',
  'maxConnections',
  'auditRetentionMs',
  ...TIMING_NAMES,
  ...WEBHOOK_SETTINGS,
] as const
/** `work` needs a given database, so the directory of an embedded one would have no effect. */
const WORK_SETTINGS = PROCESS_SETTINGS.filter((name) => name !== 'directory')

/** `serve` runs no workers, and starts no database. */
const SERVE_SETTINGS = [
  ...DATABASE_SETTINGS.filter((name) => name !== 'directory'),
  'host',
  'port',
  'metricsHost',
  'metricsPort',
  ...DASHBOARD_SETTINGS,
  ...WEBHOOK_SETTINGS,
] as const

/** Every other command can do without the workers of the config file, and so without a config file that is in order. */
const RUNS_WORKERS = new Set(['up', 'work'])

const HELP = `
The options under "Settings" can also be set in the environment (--port as LEASEHOLD_PORT,
--database-url as DATABASE_URL) or in leasehold.config.js, .mjs, .cjs or .ts (as port, databaseUrl).
Options take precedence over the environment, and the environment over the file.

Exit codes: 0 success, 1 failure, 2 usage error.`

/**
 * The groups of commands. A group is loaded when it is named, and the code of a command when the command runs: loading
 * everything takes longer than most commands.
 */
const GROUPS: readonly {
  readonly name: string
  readonly description: string
  readonly load: () => Promise<(group: Command, define: Define) => void>
}[] = [
  {
    name: 'outbox',
    description: 'write, list, show, explain, retry, replay, give up and unblock events',
    load: async () => (await import('./outbox/commands.ts')).addOutboxCommands,
  },
  {
    name: 'webhooks',
    description:
      'manage endpoints; send, list, show, explain, retry, replay and cancel deliveries; open the portal',
    load: async () => (await import('./webhooks/commands.ts')).addWebhookCommands,
  },
  {
    name: 'sync',
    description: 'enqueue, watch, explain, cancel and replay sync jobs',
    load: async () => (await import('./sync/commands.ts')).addSyncCommands,
  },
  {
    name: 'lease',
    description: 'prepare a table you already have for workers, and explain its rows',
    load: async () => (await import('./lease.ts')).addLeaseCommands,
  },
  {
    name: 'keys',
    description: 'create, list and revoke the keys of the HTTP API',
    load: async () => addOperations((await import('../operations/api-keys.ts')).KEYS),
  },
  {
    name: 'settings',
    description: 'show and change the settings of workers while they run; pause and resume them',
    load: async () => (await import('./settings.ts')).addSettingsCommands,
  },
  {
    name: 'changes',
    description: 'show and cancel bulk changes: replays, retries, cancels of many rows',
    load: async () => addOperations((await import('../operations/changes.ts')).CHANGES),
  },
]

/** Runs one command line and returns its exit code. */
export async function runProgram(args: readonly string[], terminal: Terminal): Promise<number> {
  const version = packageVersion()
  let code = 0
  const run = async (command: Command, act: (run: Run) => Promise<number>): Promise<void> => {
    code = await act(await prepare(command, version, terminal))
  }
  try {
    const program = await createProgram(terminal, run, args)
    await program.parseAsync(args, { from: 'user' })
    return code
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : EXIT_USAGE_ERROR
    terminal.err(`${safe(describe(error))}\n`)
    return isUsageError(error) ? EXIT_USAGE_ERROR : EXIT_FAILED
  }
}

/**
 * The command tree. `run` is called with the command that was given, and with what it does. With `args`, the groups that
 * they do not name are empty.
 */
export async function createProgram(
  { out, err }: Pick<Terminal, 'out' | 'err'>,
  run: (command: Command, act: (run: Run) => Promise<number>) => Promise<void>,
  args?: readonly string[],
): Promise<Command> {
  const program = new Command('leasehold')
    .description('Time-bounded, fenced leases on the rows of any PostgreSQL table.')
    .version(packageVersion(), '-V, --version', 'print the version')
    .helpOption('-h, --help', 'show this help')
    .exitOverride()
    .configureOutput({ writeOut: out, writeErr: (text) => err(safe(text)) })
    .addHelpText('after', HELP)

  const define: Define = (parent, usage, description, settings, act, addOptions) => {
    const added = parent.command(usage).description(description)
    addOptions?.(added)
    // These options have no defaults, so that the environment and the config file apply when they are not given.
    for (const setting of settings) {
      const { purpose } = DESCRIPTIONS[setting]
      added.addOption(new Option(`${flagOf(setting)} <value>`, purpose).helpGroup('Settings:'))
    }
    added.action(async () => run(added, act))
  }
  addCommands(program, define)
  for (const { name, description, load } of GROUPS) {
    const group = program.command(name).description(description)
    if (needsGroup(name, args)) (await load())(group, define)
  }
  addOperations(AUDIT)(program, define)
  addCompletionCommand(program, define)
  pointToHelp(program)
  return program
}

/** `leasehold outbox …`, `leasehold help outbox`; a completion is of all commands. One group too many does no harm. */
function needsGroup(name: string, args: readonly string[] | undefined): boolean {
  return args === undefined || args.includes('completion') || args.includes(name)
}

function addCommands(program: Command, define: Define): void {
  define(
    program,
    'up',
    'run all workers and the HTTP server in one process; without a database URL, start an embedded PostgreSQL',
    [...PROCESS_SETTINGS, ...DASHBOARD_SETTINGS],
    async (run) => (await import('./up.ts')).up(run),
    (command) => command.option('--demo', 'add sample producers, and print a summary every two seconds'),
  )
  define(
    program,
    'work',
    'run the workers declared in leasehold.config, the webhook dispatcher if there is a secret key, and the reaper',
    WORK_SETTINGS,
    async (run) => (await import('./work.ts')).work(run),
    (command) =>
      command
        .option(
          '--only <names>',
          'run only the workers with these names, separated by commas; "reaper" is the reaper',
        )
        .option(
          '--processes <number>',
          'run the workers in so many processes, which this one supervises: it restarts one that ends, and replaces all on SIGHUP (default: 1)',
        )
        .option('--no-http', 'do not serve /livez, /readyz and /metrics')
        // For the processes that `--processes` starts.
        .addOption(new Option('--supervised <order>').hideHelp()),
  )
  define(
    program,
    'serve',
    'run the HTTP API alone, for operators; its callers need keys (`leasehold keys create`)',
    SERVE_SETTINGS,
    async (run) => (await import('./serve.ts')).serve(run),
  )
  define(
    program,
    'migrate',
    'create the schema, or migrate it to the version of this release',
    DATABASE_SETTINGS,
    async (run) => (await import('./migrate.ts')).runMigrate(run),
    (command) =>
      command
        .option(
          '--buckets <n>',
          'how many buckets the tables are to have; can be raised while workers run, and never lowered',
        )
        .option(
          '--citus',
          'distribute the tables with Citus, by their buckets (default: 64), while nobody uses them',
        )
        .option('--print', 'print the SQL instead, for another migration tool; needs no database')
        .option('--after <version>', 'with --print: only the migrations after this version')
        .option(...JSON_FLAG),
  )
  define(
    program,
    'roles',
    'create the database roles of producers, workers, readers, operators and the HTTP API, and grant what each needs',
    DATABASE_SETTINGS,
    async (run) => (await import('./migrate.ts')).runRoles(run),
    (command) =>
      command
        .option('--role-prefix <prefix>', 'what their names begin with (default: "leasehold")')
        .option('--print', 'print the SQL instead, for an administrator')
        .option(...JSON_FLAG),
  )
  define(
    program,
    'status',
    'show the running workers and the backlog of each table',
    DATABASE_SETTINGS,
    async (run) => (await import('./status.ts')).status(run),
    (command) => addWatchFlags(command, 'Ctrl-C'),
  )
  define(
    program,
    'doctor',
    'examine the database and its settings, the tables, the workers and their rows; say what is wrong and how to repair it',
    [...DATABASE_SETTINGS, 'listenUrl'],
    async (run) => (await import('./doctor.ts')).doctor(run),
    (command) =>
      command
        .option('--json', 'print one JSON document instead of text, for scripts')
        .option('--ignore <checks>', 'do not make these checks, separated by commas')
        .option(
          '--fail-on <severity>',
          'exit with 1 from this severity on: error or warning (default: warning)',
        )
        .addHelpText(
          'after',
          '\nExit codes: 0 nothing was found, 1 something was found, 2 nothing could be examined.',
        ),
  )
  define(
    program,
    'url',
    'print the URL of the embedded PostgreSQL that runs in the directory, with its password, for psql and other clients',
    ['directory'],
    printUrl,
  )
}

/** Gives every group a `help` command, and makes every usage error end with the command that shows the right help. */
function pointToHelp(command: Command, path = command.name()): void {
  const topic = command.commands.length > 0 ? 'the commands' : 'the arguments and options'
  if (command.commands.length > 0) command.helpCommand('help [command]', 'show the help of a command')
  command.showHelpAfterError(`Run \`${path} --help\` for ${topic}.`)
  for (const child of command.commands) pointToHelp(child, `${path} ${child.name()}`)
}

async function prepare(command: Command, version: string, terminal: Terminal): Promise<Run> {
  const flags: Record<string, unknown> = command.opts()
  const read = await loadSettings({
    flags,
    environment: terminal.environment,
    workingDirectory: terminal.workingDirectory,
    terminal: terminal.isTerminal,
    needsWorkers: RUNS_WORKERS.has(command.name()),
  })
  const loaded = await recogniseEmbedded(read)
  const { logLevel, logFormat } = loaded.settings
  const log = createLog({ level: logLevel, format: logFormat, write: terminal.err })
  for (const warning of loaded.warnings) log.warn(warning)
  return { loaded, log, version, print: terminal.out, flags, args: command.args, terminal }
}

/** Errors repeat arguments, which may come from elsewhere: a URL with a password, or characters that control a terminal. */
function safe(text: string): string {
  return printableLines(withoutUrlPasswords(text))
}

function isUsageError(error: unknown): boolean {
  return error instanceof UsageError || isLeaseholdError(error, 'REQUEST_INVALID')
}

/** The message of an expected error says everything; of any other error the stack is printed as well. */
function describe(error: unknown): string {
  if (error instanceof UsageError) return `error: ${error.message}`
  if (error instanceof LeaseholdError) return `leasehold: ${error.code}: ${error.message}`
  return `leasehold: unexpected error\n${error instanceof Error ? (error.stack ?? error.message) : String(error)}`
}
