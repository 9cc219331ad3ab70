/**
 * Workers over lease tables. What this folder promises:
 *
 * - **A row in processing is leased, and its lease is renewed** from before its handler starts until it is settled, by
 *   a thread that no handler can starve; never for longer than three lease durations.
 * - **A handler is told when its lease is lost**: its signal fires, with the reason, and nothing more is written for that row.
 * - **A worker holds a bounded number of rows**, whatever the backlog, and releases what it never started.
 * - **Nothing ends the process**: not a database that goes away, not a handler that throws, not a lost connection.
 * - **A process that dies is noticed** by its session within seconds where sessions are visible, by its leases always.
 * - **Everything that happens is an event.** Logs, metrics and tests have no other source.
 */
export {
  dead,
  done,
  PermanentError,
  retry,
  SaturatedError,
  settleAs,
  type Outcome,
} from './completion/outcome.ts'
export type { HandlerContext, HandlerLog, LogSource } from './context.ts'
export {
  Events,
  type AnyEvent,
  type EventMap,
  type EventOf,
  type EventType,
  type LossReason,
} from './events.ts'
export { fixedGroups, type Groups, type OpenGroups } from './claiming/groups.ts'
export type { SinkProbe } from './claiming/pausing.ts'
export type { Loop } from './loop.ts'
export { Runtime, startRuntime } from './process.ts'
export type { Maintenance } from './reaper/maintenance.ts'
export {
  counterDifference,
  type Counters,
  LATENCY_BOUNDS_MS,
  latencyQuantile,
  sumCounters,
  type TableCounters,
} from './registry/counters.ts'
export {
  listWorkers,
  type Pause,
  type ServedTable,
  unreapedTables,
  type WorkerInfo,
  type WorkerRow,
} from './registry/registry.ts'
export {
  changeSettings,
  readSettings,
  type SettingsPatch,
  storedSettings,
  type StoredSettings,
} from './registry/stored-settings.ts'
export type { RuntimeOptions, WorkDeclaration, WorkerEnvironment } from './work-declaration.ts'
export {
  type DeclaredSettings,
  DEFAULT_WORKER_SETTINGS,
  workerSettings,
  type WorkerSettings,
} from './settings.ts'
export type { Limits } from './slots/limits.ts'
export { keepHeapSmall } from './small-heap.ts'
export type { Handler, Worker } from './worker.ts'
