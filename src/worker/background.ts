import type { LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { createLoop, type Loop } from './loop.ts'
import { createReaper } from './reaper.ts'
import type { ServedWorkers, ServedWorkersOptions } from './served-workers.ts'
import { workerSettings } from './settings.ts'
import { createUpkeep } from './upkeep.ts'
import type { RuntimeOptions } from './work-declaration.ts'

export interface BackgroundOptions extends ServedWorkersOptions {
  readonly runtime: RuntimeOptions
  /** Of the tables that are reaped. */
  readonly stores: readonly LeaseStore[]
  readonly served: ServedWorkers
  readonly presenceMs: number
  readonly isListening: () => boolean
}

const SETTINGS_POLL_MS = 1_000

/** What a process does beside working off rows: reaping, upkeep, saying what it has in hand, looking for settings. */
export function backgroundLoops(options: BackgroundOptions): Loop[] {
  const { runtime, worker, events, served } = options
  const { presenceMs, isListening, post } = options
  const trouble = (what: string) => (error: unknown) => events.emit('trouble', { worker, what, error })
  return [
    ...(runtime.reaper === false ? [] : [reaperOf(options), ...upkeepOf(options)]),
    createLoop({
      name: 'in flight',
      work: async () => {
        post({ type: 'inFlight', count: served.inFlight })
        return Promise.resolve()
      },
      pauseMs: () => presenceMs,
      onError: trouble('counting what is in flight'),
    }),
    createLoop({
      name: 'settings',
      // Without LISTEN nobody tells of a change, so it is looked for.
      work: async () => (isListening() ? undefined : served.readAllSettings()),
      pauseMs: () => SETTINGS_POLL_MS,
      onError: trouble('reading the settings'),
    }),
  ]
}

function reaperOf({ runtime, served, ...options }: BackgroundOptions): Loop {
  const { eviction = true, settings } = runtime
  const intervals = (): number[] => [...served].map(({ worker }) => worker.settings.reaperIntervalMs)
  return createReaper({
    ...options,
    settings: () => ({
      reaperIntervalMs: Math.min(workerSettings(settings).reaperIntervalMs, ...intervals()),
    }),
    ...(eviction ? {} : { eviction: false }),
  })
}

/** Once for each table, however many work on it. */
function upkeepOf({ runtime, worker, db, events }: BackgroundOptions): Loop[] {
  const { workers = [], reapTables = [] } = runtime
  const tables = new Map([...reapTables, ...workers].map(({ table, upkeep }) => [table, upkeep]))
  return [...tables].flatMap(([table, upkeep]) =>
    upkeep === undefined ? [] : [createUpkeep({ upkeep, table: tableName(table), worker, db, events })],
  )
}
