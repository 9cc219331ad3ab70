/** What a worker process is asked to do, and the refusal of what cannot work. */
import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { refuseUnknownOptions } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import {
  DATABASE_URL,
  describeValue,
  isFunction,
  isRecord,
  isText,
  problemsWith,
  type Rules,
  TRUE_OR_FALSE,
  MIN_AUDIT_RETENTION_MS,
} from '../rules.ts'
import { MAX_TIMER_MS } from '../timeout.ts'
import type { Groups } from './claiming/groups.ts'
import type { SinkProbe } from './claiming/pausing.ts'
import type { LogSource } from './context.ts'
import type { Events } from './events.ts'
import type { Maintenance } from './reaper/maintenance.ts'
import {
  DECLARED_SETTING_NAMES,
  declarationProblems,
  declaredSettings,
  type DeclaredSettings,
  workerSettings,
  type WorkerSettings,
} from './settings.ts'
import type { Limits } from './slots/limits.ts'
import type { Handler } from './worker.ts'

/** One table to be worked off, and by what. */
export interface WorkDeclaration<Row extends object = Record<string, unknown>> {
  /** Names the worker: in the `settings` table, in `leasehold.wake(name)`, and in `--only` unless it has a `role`. */
  readonly name: string
  /** The name by which `--only` chooses it, where several workers belong together. Default: its name. */
  readonly role?: string
  readonly table: LeaseTable
  readonly handle: Handler<Row>
  /** What the event `failed`, and with it the log, says of a row besides its id: what kind of row it is. No secrets. */
  readonly describe?: (row: Row) => Readonly<Record<string, string>>
  readonly settings?: DeclaredSettings
  readonly limits?: Limits<Row>
  /** For a table with groups: how much room each has. */
  readonly groups?: Groups<Row>
  /** Asks periodically whether the target of the handler is available; claiming pauses while it is not. */
  readonly probe?: SinkProbe
  /** Its producers call `leasehold.wake(name)`. */
  readonly wake?: boolean
  /** Which bucket it serves, or all, where the table has them. Default 0. */
  readonly bucket?: number | 'all'
  /** Periodic work on the table; done by the processes that reap it. */
  readonly maintenance?: Maintenance
  /**
   * Called before the worker starts, to open what the handler needs. Called once more if it fails because the database is
   * away, and the start waits for that (`databaseWaitMs`).
   */
  readonly open?: (environment: WorkerEnvironment) => Promise<void>
  /** Called once the worker has stopped, to close what was opened. */
  readonly close?: () => Promise<void>
}

/** What a worker may use of its process. */
export interface WorkerEnvironment {
  readonly db: Database
  /** The id of the process. */
  readonly worker: string
  readonly events: Events
  readonly log: LogSource
  /** The settings in force, which may change while the worker runs. */
  readonly settings: () => WorkerSettings
}

export interface RuntimeOptions {
  readonly databaseUrl: string
  readonly workers?: readonly WorkDeclaration<never>[]
  readonly schema?: string
  /** Unique; made from host, process id and random bytes unless given (RULE-020-032). */
  readonly id?: string
  readonly events?: Events
  /**
   * Where handlers log, and where errors and warnings go that no listener of `events` was given for. Without it they go
   * to stderr, as one line each; `false` silences them.
   */
  readonly log?: LogSource | false
  /** For all workers of this process; each worker's own come first. */
  readonly settings?: DeclaredSettings
  /** Take back expired leases of these tables. Default true; some process must (RULE-020-020). */
  readonly reaper?: boolean
  /** Tables to be reaped in addition to those of `workers`: a process may reap what others work on. */
  readonly reapTables?: readonly (Pick<WorkDeclaration<never>, 'table'> &
    Partial<Pick<WorkDeclaration<never>, 'name' | 'wake' | 'bucket' | 'maintenance' | 'settings'>>)[]
  /**
   * Use the registry: take back the leases of processes whose session has ended, and leave expired ones to owners that live.
   * Default true.
   */
  readonly eviction?: boolean
  /**
   * LISTEN for wake-ups and settings. Default true. Through a transaction-mode pooler they do not arrive, which is
   * reported once: switch it off, or give a `listenUrl` that bypasses the pooler.
   */
  readonly listen?: boolean
  /**
   * For the one session that listens and by which others see that this process is alive, where `databaseUrl` is that
   * of a pooler. Default: `databaseUrl`.
   */
  readonly listenUrl?: string
  /** Where leases are renewed. Default 'thread': a handler that blocks the event loop does not delay it. */
  readonly heartbeat?: 'thread' | 'inline'
  /** How often the process says in the registry that it is alive. Default 5,000. */
  readonly presenceMs?: number
  /** How long a process that reaps retains entries of the audit, in milliseconds from 30 days; null: for ever. Default 365 days. */
  readonly auditRetentionMs?: number | null | undefined
  /**
   * How long a start waits, in milliseconds, while the database is starting, cannot be reached or has no connection left;
   * `Infinity`: until it can be used. The event `databaseLost` tells of it. Default 0: the start fails at once.
   */
  readonly databaseWaitMs?: number
  /** Ends a start that waits, which then rejects with the reason of the signal. A process that runs is ended by `stop()`. */
  readonly signal?: AbortSignal
  /** The most connections of the pool; the heartbeat opens up to four more (RULE-020-041). Default 6. */
  readonly maxConnections?: number
  /** Bring Leasehold's schema up to date first. Default false: run `leasehold migrate` when you deploy. */
  readonly migrate?: boolean
}

/** The role of the reaper. It needs no declaration, so no declared worker may have its name. */
export const REAPER = 'reaper'

/** Worker names are used on the command line (`--only`) and in the settings table. */
const NAME = /^[A-Za-z0-9][\w.-]{0,62}$/

const WORK_RULES: Rules<WorkDeclaration> = {
  name: {
    required: true,
    holds: isName,
    text: `a name of at most 63 letters, digits, ".", "_" and "-", and not ${REAPER}`,
  },
  role: { holds: isName, text: `a name like that of a worker, and not ${REAPER}` },
  table: { required: true, holds: isLeaseTable, text: 'a lease table, made with leaseTable()' },
  handle: {
    required: true,
    holds: isFunction,
    text: 'a function that gets the row and returns a promise',
  },
  settings: { holds: isRecord, text: 'an object of settings such as { concurrency: 10 }' },
  limits: {
    holds: (value) => isRecord(value) && isFunction(value['key']),
    text: 'an object such as { key: (row) => row.customer, concurrency: 2 }',
  },
  groups: {
    holds: (value) => isRecord(value) && isFunction(value['open']),
    text: 'an object that knows the groups of the table: { open, claimed, ended, onRoom }',
  },
  probe: {
    holds: (value) => isRecord(value) && Number(value['everyMs']) > 0 && isFunction(value['check']),
    text: 'an object such as { everyMs: 1000, check: async (signal) => {} }',
  },
  wake: TRUE_OR_FALSE,
  bucket: {
    holds: (value) => value === 'all' || (Number.isInteger(value) && Number(value) >= 0),
    text: "a whole number from 0, or 'all'",
  },
  maintenance: {
    holds: (value) => isRecord(value) && Number(value['everyMs']) > 0 && isFunction(value['run']),
    text: 'an object such as { everyMs: 60000, run: async (db, stop) => ({ removed: 0 }) }',
  },
  open: { holds: isFunction, text: 'a function that opens what the handler needs' },
  close: { holds: isFunction, text: 'a function that closes what the handler has opened' },
  describe: {
    holds: isFunction,
    text: 'a function that gets the row and returns an object of texts for the log',
  },
}

const OPTION_RULES: Rules<RuntimeOptions> = {
  databaseUrl: { required: true, ...DATABASE_URL },
  workers: { holds: Array.isArray, text: 'a list of { name, table, handle }' },
  schema: { holds: isText, text: "the name of Leasehold's own schema" },
  id: { holds: isText, text: 'a text that no other process has' },
  events: {
    holds: (value) => isRecord(value) && isFunction(value['on']) && isFunction(value['emit']),
    text: 'made with new Events()',
  },
  log: {
    holds: (value) =>
      value === false ||
      (isRecord(value) &&
        ['debug', 'info', 'warn', 'error', 'child'].every((name) => isFunction(value[name]))),
    text: 'false, or a logger with debug, info, warn, error and child, such as one of pino',
  },
  settings: { holds: isRecord, text: 'an object of settings such as { concurrency: 10 }' },
  reaper: TRUE_OR_FALSE,
  reapTables: { holds: isListOfTables, text: 'a list of { table }' },
  eviction: TRUE_OR_FALSE,
  listen: TRUE_OR_FALSE,
  listenUrl: DATABASE_URL,
  heartbeat: { holds: (value) => value === 'thread' || value === 'inline', text: "'thread' or 'inline'" },
  presenceMs: {
    holds: (value) => typeof value === 'number' && value > 0 && value <= MAX_TIMER_MS,
    text: 'a number of milliseconds above 0',
  },
  databaseWaitMs: {
    holds: (value) => typeof value === 'number' && value >= 0,
    text: 'a number of milliseconds from 0, or Infinity',
  },
  signal: { holds: (value) => value instanceof AbortSignal, text: 'an AbortSignal' },
  maxConnections: {
    holds: (value) => Number.isInteger(value) && Number(value) >= 1,
    text: 'a whole number from 1',
  },
  auditRetentionMs: {
    holds: (value) => value === null || (typeof value === 'number' && value >= MIN_AUDIT_RETENTION_MS),
    text: `a number of milliseconds from ${MIN_AUDIT_RETENTION_MS} (30 days), or null`,
  },
  migrate: TRUE_OR_FALSE,
}

/** Names that mean something elsewhere, in `settings` or in the config file, and how they are written here. */
const OTHER_PLACES: Readonly<Record<string, string>> = {
  workerId: 'id',
  ...Object.fromEntries(DECLARED_SETTING_NAMES.map((name) => [name, `settings: { ${name} }`])),
}

/** Refuses options that cannot work, with every problem, before anything is opened. */
export function refuseInvalidOptions(given: unknown): void {
  if (!isRecord(given)) return refuseUnknownOptions('startRuntime', given, Object.keys(OPTION_RULES))
  const { workers, reapTables, reaper, settings } = given
  const wrong = isRecord(settings)
    ? declarationProblems(settings).map((problem) => `settings: ${problem}`)
    : []
  // What is wrong by itself is not repeated for every worker.
  const process = isRecord(settings) && wrong.length === 0 ? settings : {}
  const isIdle = isEmpty(workers) && (isEmpty(reapTables) || reaper === false)
  const misplaced = Object.keys(given).filter((name) => !(name in OPTION_RULES) && name in OTHER_PLACES)
  const named = Object.fromEntries(Object.entries(given).filter(([name]) => !misplaced.includes(name)))
  const problems = [
    ...misplaced.map((name) => `${name} is given as ${OTHER_PLACES[name]}`),
    ...problemsWith(named, OPTION_RULES),
    ...wrong,
    ...(Array.isArray(workers) ? workProblems(workers, process) : []),
    ...(isIdle
      ? [
          `workers is ${describeValue(workers)}, so that there is nothing to do: give at least one { name, table, handle }, or \`reapTables\``,
        ]
      : []),
    ...(isEmpty(workers) ? refusalOf('settings', () => checkedSettings(process)) : []),
  ]
  if (problems.length === 0) return
  throw new LeaseholdError('SETTING_INVALID', `The options of startRuntime: ${problems.join('; ')}.`, {
    remedy: 'Correct the options named.',
  })
}

/**
 * Every problem with a list of declarations. `process` holds the settings that apply to all of them, and `source` says
 * where they were declared, for messages: ` (leasehold.config.mjs)`.
 */
export function workProblems(workers: readonly unknown[], process: DeclaredSettings, source = ''): string[] {
  return [
    ...workers.flatMap((entry, i) => problemsOf(entry, `workers[${i}]`, process, source)),
    ...repeatedNames(workers, source),
  ]
}

function problemsOf(entry: unknown, label: string, process: DeclaredSettings, source: string): string[] {
  if (!isRecord(entry)) {
    const hint = Array.isArray(entry) ? '; to add the workers of a list, write ...list' : ''
    return [
      `${label}${source} is ${describeValue(entry)}, but must be an object { name, table, handle }${hint}`,
    ]
  }
  const { name, table, settings } = entry
  const from = `${isName(name) ? ` of ${describeValue(name)}` : ''}${source}`
  const isDeclaration = isRecord(table) && !isLeaseTable(table) && 'claimable' in table
  const rules = isDeclaration
    ? {
        ...WORK_RULES,
        table: {
          ...WORK_RULES.table,
          text: `${WORK_RULES.table.text}; this is only its declaration: wrap it in leaseTable(…)`,
        },
      }
    : WORK_RULES
  return [
    ...problemsWith(entry, rules, { path: `${label}.`, source: from }),
    ...(isLeaseTable(table) ? missingOutcomes(table, `${label}.table${from}`) : []),
    ...(settings === undefined || isRecord(settings)
      ? refusalOf(`${label}.settings${from}`, () => checkedSettings(process, settings))
      : []),
  ]
}

function checkedSettings(...declared: readonly (DeclaredSettings | undefined)[]): WorkerSettings {
  for (const one of declared) {
    const problems = declarationProblems(one ?? {})
    if (problems.length > 0)
      throw new LeaseholdError('SETTING_INVALID', `The settings cannot work: ${problems.join('; ')}.`)
  }
  return workerSettings(declaredSettings(...declared))
}

function isName(value: unknown): boolean {
  return typeof value === 'string' && NAME.test(value) && value !== REAPER
}

/** Not by identity, because the caller may have `leaseTable` from another copy of the package. */
function isLeaseTable(value: unknown): value is LeaseTable {
  return (
    isRecord(value) &&
    typeof value['schema'] === 'string' &&
    typeof value['name'] === 'string' &&
    Array.isArray(value['id']) &&
    isRecord(value['lease']) &&
    isRecord(value['writes']) &&
    isRecord(value['outcomes'])
  )
}

function isListOfTables(value: unknown): boolean {
  return Array.isArray(value) && value.every((entry) => isRecord(entry) && isLeaseTable(entry['table']))
}

function isEmpty(list: unknown): boolean {
  return list === undefined || (Array.isArray(list) && list.length === 0)
}

/** What a handler may return or throw, and how a table gets the outcome for it. */
const NEEDED_OUTCOMES = {
  done: "declare it in `outcomes`, for example done: { finished_at: 'now()' }",
  retry: 'declare `attempts: {}` or `availableAt`, and the table has it',
  dead: "declare it in `outcomes`, for example dead: { failed_at: 'now()' }",
} as const

function missingOutcomes(table: LeaseTable, label: string): string[] {
  return Object.entries(NEEDED_OUTCOMES)
    .filter(([outcome]) => !(outcome in table.outcomes))
    .map(([outcome, remedy]) => `${label} is ${tableName(table)}, which has no outcome ${outcome}: ${remedy}`)
}

function repeatedNames(workers: readonly unknown[], source: string): string[] {
  const names = workers.flatMap((entry) => (isRecord(entry) ? [entry['name']] : []))
  const repeated = new Set(names.filter((name, i) => typeof name === 'string' && names.indexOf(name) !== i))
  return [...repeated].map(
    (name) =>
      `workers${source} has the name ${describeValue(name)} twice, but each worker needs a name of its own`,
  )
}

function refusalOf(label: string, check: () => unknown): string[] {
  try {
    check()
    return []
  } catch (error) {
    if (!isLeaseholdError(error, 'SETTING_INVALID')) throw error
    return [`${label}: ${error.message.replace(/\.$/, '')}`]
  }
}
