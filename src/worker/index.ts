/**
 * Workers over lease tables. What this folder promises to those who build on it:
 *
 * - **A row in processing is leased, and its lease is renewed** from before its handler starts until it is settled, by
 *   a thread that no handler can starve; never for longer than three lease durations.
 * - **A handler hears when it has lost**: its signal fires, with the reason, and nothing more is written for that row.
 * - **A worker holds a bounded number of rows**, whatever the backlog, and gives back what it never started.
 * - **Nothing ends the process**: not a database that goes away, not a handler that throws, not a lost connection.
 * - **Death is noticed** by its session within seconds where sessions show, by the leases always; it is told once.
 * - **Everything that happens is an event.** Logs, metrics and tests have no other source.
 */
export type { HandlerContext, HandlerLog, LogSource } from './context.ts'
export {
  Events,
  type AnyEvent,
  type EventMap,
  type EventOf,
  type EventType,
  type LossReason,
} from './events.ts'
export { fixedGroups } from './fixed-groups.ts'
export type { Groups, OpenGroups } from './groups.ts'
export type { Limits } from './limits.ts'
export { changeSettings, readSettings } from './live-settings.ts'
export type { Loop } from './loop.ts'
export { dead, done, PermanentError, retry, SaturatedError, settleAs, type Outcome } from './outcome.ts'
export { listWorkers, reaperAlive, type WorkerInfo, type WorkerRow } from './registry.ts'
export { Runtime, startRuntime } from './runtime.ts'
export type { RuntimeOptions, Surroundings, WorkDeclaration } from './work-declaration.ts'
export { DEFAULT_WORKER_SETTINGS, workerSettings, type WorkerSettings } from './settings.ts'
export type { SinkProbe } from './sink-probe.ts'
export type { Upkeep } from './upkeep.ts'
export type { Handler, Worker } from './worker.ts'
