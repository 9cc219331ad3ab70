import { type Clock, systemClock } from '../clock.ts'
import type { Database } from '../postgres/database.ts'
import type { Events } from './events.ts'
import { createLoop, type Loop } from './loop.ts'

/** What a table needs now and then besides the reaper: the removal of what nobody needs any more, say. */
export interface Upkeep {
  readonly everyMs: number
  /** Does a bounded piece of it, or all of it in small ones, and says what it did. Any number may run at once. */
  run(db: Database, stop: AbortSignal): Promise<Readonly<Record<string, number>>>
}

export interface UpkeepOptions {
  readonly upkeep: Upkeep
  readonly table: string
  readonly worker: string
  readonly db: Database
  readonly events: Events
  readonly clock?: Clock
}

/** Runs once at the start, then at every interval; no error ends it. */
export function createUpkeep({
  upkeep,
  table,
  worker,
  db,
  events,
  clock = systemClock,
}: UpkeepOptions): Loop {
  return createLoop({
    name: `upkeep of ${table}`,
    work: async (stop) => {
      const startedAt = clock.monotonicNow()
      const done = await upkeep.run(db, stop)
      events.emit('upkeepRan', { worker, table, done, durationMs: clock.monotonicNow() - startedAt })
    },
    pauseMs: () => upkeep.everyMs,
    onError: (error) => events.emit('trouble', { worker, what: `looking after ${table}`, error }),
  })
}
