import { LeaseholdError } from '../errors.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import type { Database } from '../postgres/database.ts'
import type { LogSource } from './context.ts'
import type { Events } from './events.ts'
import type { Groups } from './groups.ts'
import type { Limits } from './limits.ts'
import type { WorkerSettings } from './settings.ts'
import type { SinkProbe } from './sink-probe.ts'
import type { Upkeep } from './upkeep.ts'
import type { Handler } from './worker.ts'

/** One table to be worked off, and by what. */
export interface WorkDeclaration<Row extends object = Record<string, unknown>> {
  /** The role; also the name of its row in the `settings` table, and what `leasehold.wake(name)` wakes. */
  readonly name: string
  /** By which it is chosen (`--only`), where it is one of several that belong together. Default: its name. */
  readonly role?: string
  readonly table: LeaseTable
  readonly handle: Handler<Row>
  readonly settings?: Partial<WorkerSettings>
  readonly limits?: Limits<Row>
  /** For a table with groups: who knows how much room each has. */
  readonly groups?: Groups<Row>
  /** Asked now and then whether what the handler sends to has room; claiming pauses while it has not. */
  readonly probe?: SinkProbe
  /** Its producers call `leasehold.wake(name)`. */
  readonly wake?: boolean
  readonly bucket?: number
  /** What the table needs now and then; done by the processes that reap it. */
  readonly upkeep?: Upkeep
  /** Called before the worker starts: opens what the handler needs. */
  readonly open?: (surroundings: Surroundings) => Promise<void>
  /** Called once the worker has stopped: closes what its handler has opened. */
  readonly close?: () => Promise<void>
}

/** Where a worker runs. */
export interface Surroundings {
  readonly db: Database
  /** The worker's id. */
  readonly worker: string
  readonly events: Events
  readonly log: LogSource
}

export interface RuntimeOptions {
  readonly databaseUrl: string
  readonly workers?: readonly WorkDeclaration<never>[]
  readonly schema?: string
  /** Unique; made from host, process and chance unless given (RULE-020-032). */
  readonly id?: string
  readonly events?: Events
  readonly log?: LogSource
  /** For all workers of this process; each worker's own come first. */
  readonly settings?: Partial<WorkerSettings>
  /** Take back expired leases of these tables. Default true; some process must (RULE-020-020). */
  readonly reaper?: boolean
  /** What is to be reaped besides the tables of `workers`: a process may reap what others work on. */
  readonly reapTables?: readonly (Pick<WorkDeclaration<never>, 'table'> &
    Partial<Pick<WorkDeclaration<never>, 'name' | 'wake' | 'bucket' | 'upkeep'>>)[]
  /** Take back the leases of workers whose session is gone. Default true. */
  readonly eviction?: boolean
  /**
   * LISTEN for wake-ups and settings. Default true; behind a transaction-mode pooler switch it off, or give a
   * `listenUrl` that leads past the pooler.
   */
  readonly listen?: boolean
  /**
   * For the one session that listens and by which others see that this worker is alive, when `databaseUrl` is that of
   * a pooler. Default: `databaseUrl`.
   */
  readonly listenUrl?: string
  /** Where leases are renewed. Default 'thread': a handler that blocks the event loop does not starve it. */
  readonly lifeline?: 'thread' | 'inline'
  readonly presenceMs?: number
  /** The most connections of the pool; two more are the lifeline's (RULE-020-041). Default 10. */
  readonly maxConnections?: number
  readonly migrate?: boolean
}

const NEEDED_OUTCOMES = ['done', 'retry', 'dead'] as const

/** Each is told from the others by its name, and what its handler returns or throws must have somewhere to go. */
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
