import { LeaseholdError } from '../errors.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import type { Database } from '../postgres/database.ts'
import type { Groups } from './claiming/groups.ts'
import type { SinkProbe } from './claiming/pausing.ts'
import type { LogSource } from './context.ts'
import type { Events } from './events.ts'
import type { Maintenance } from './reaper/maintenance.ts'
import type { WorkerSettings } from './settings.ts'
import type { Limits } from './slots/limits.ts'
import type { Handler } from './worker.ts'

/** One table to be worked off, and by what. */
export interface WorkDeclaration<Row extends object = Record<string, unknown>> {
  /** The role; also the name of its row in the `settings` table, and what `leasehold.wake(name)` wakes. */
  readonly name: string
  /** The name by which `--only` chooses it, where several workers belong together. Default: its name. */
  readonly role?: string
  readonly table: LeaseTable
  readonly handle: Handler<Row>
  readonly settings?: Partial<WorkerSettings>
  readonly limits?: Limits<Row>
  /** For a table with groups: how much room each has. */
  readonly groups?: Groups<Row>
  /** Asks periodically whether the system that the handler sends to is well; claiming pauses while it is not. */
  readonly probe?: SinkProbe
  /** Its producers call `leasehold.wake(name)`. */
  readonly wake?: boolean
  readonly bucket?: number
  /** Periodic work on the table; done by the processes that reap it. */
  readonly maintenance?: Maintenance
  /** Called before the worker starts, to open what the handler needs. */
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
  readonly settings?: Partial<WorkerSettings>
  /** Take back expired leases of these tables. Default true; some process must (RULE-020-020). */
  readonly reaper?: boolean
  /** Tables to be reaped in addition to those of `workers`: a process may reap what others work on. */
  readonly reapTables?: readonly (Pick<WorkDeclaration<never>, 'table'> &
    Partial<Pick<WorkDeclaration<never>, 'name' | 'wake' | 'bucket' | 'maintenance'>>)[]
  /** Take back the leases of processes whose session has ended. Default true. */
  readonly eviction?: boolean
  /**
   * LISTEN for wake-ups and settings. Default true; with a transaction-mode pooler switch it off, or give a
   * `listenUrl` that leads past the pooler.
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
  /** The most connections of the pool; the heartbeat opens two more (RULE-020-041). Default 10. */
  readonly maxConnections?: number
  /** Bring Leasehold's schema up to date first. Default false: run `leasehold migrate` when you deploy. */
  readonly migrate?: boolean
}

const NEEDED_OUTCOMES = ['done', 'retry', 'dead'] as const

/** Refuses two workers of one name, and tables that lack an outcome for what a handler may return or throw. */
export function refuseUnservable(declarations: readonly Pick<WorkDeclaration, 'name' | 'table'>[]): void {
  const names = new Set<string>()
  for (const { name, table } of declarations) {
    refuseUnsettleable(table)
    if (names.has(name)) {
      throw new LeaseholdError('SETTING_INVALID', `There are two workers named ${name}.`)
    }
    names.add(name)
  }
}

function refuseUnsettleable(table: LeaseTable): void {
  const missing = NEEDED_OUTCOMES.filter((outcome) => !(outcome in table.outcomes))
  if (missing.length === 0) return
  throw new LeaseholdError(
    'LEASE_TABLE_INVALID',
    `The lease table ${tableName(table)} cannot be worked off: it declares no outcome ${missing.join(', ')}.`,
    { remedy: 'Declare done, retry (args: error text, delay_ms float8) and dead (args: error text).' },
  )
}
