import { type Clock, systemClock } from '../../clock.ts'
import type { Database } from '../../postgres/database.ts'
import { type Events, reportError } from '../events.ts'
import { createLoop, type Loop } from '../loop.ts'

/** Periodic work on a table, such as the removal of old rows; done by the processes that reap it. */
export interface Maintenance {
  readonly everyMs: number
  /** Does the work in small batches, and returns counts of what it did. Any number of processes may run it at once. */
  run(db: Database, stop: AbortSignal): Promise<Readonly<Record<string, number>>>
  /**
   * What it was declared with, such as how long rows are retained. By this a supervisor that was started earlier
   * recognises that its own declaration is out of date. Default: nothing but `everyMs`.
   */
  readonly settings?: object
  /** Which of the counts are rows that it made dead: they are logged as a warning. Default: none. */
  readonly deadCounts?: readonly string[]
}

export interface MaintenanceOptions {
  readonly maintenance: Maintenance
  readonly table: string
  readonly worker: string
  readonly db: Database
  readonly events: Events
  readonly isLeftToOthers?: (table: string) => boolean
  readonly clock?: Clock
}

/** Runs once at the start, then at every interval; no error ends it. */
export function createMaintenance({
  maintenance,
  table,
  worker,
  db,
  events,
  isLeftToOthers = () => false,
  clock = systemClock,
}: MaintenanceOptions): Loop {
  return createLoop({
    name: `maintenance of ${table}`,
    work: async (stop) => {
      if (isLeftToOthers(table)) return
      const startedAt = clock.monotonicNow()
      const done = await maintenance.run(db, stop)
      const dead = (maintenance.deadCounts ?? []).reduce((sum, name) => sum + (done[name] ?? 0), 0)
      const durationMs = clock.monotonicNow() - startedAt
      events.emit('maintenanceRan', { worker, table, done, dead, durationMs })
    },
    pauseMs: () => maintenance.everyMs,
    onError: (error) => reportError(events, worker, `maintaining ${table}`, error),
  })
}
