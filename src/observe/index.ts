/**
 * What a running process shows of itself: its log, its health and its metrics. Lower layers know nothing of this
 * folder; they emit typed events, and whoever starts them hands those to `logEvents`, `createMetrics` and
 * `observeWithOpenTelemetry`.
 */
export { databaseAnswers, migrationsCurrent } from './database-checks.ts'
export { logEvents } from './event-log.ts'
export { databaseGauge, gauge, type GaugeSource } from './gauge-source.ts'
export { createHealth, type Check, type CheckResult, type Health } from './health.ts'
export { createLog, type Logger, type LogOptions, withoutUrlPasswords } from './log.ts'
export { createMetrics, type Metrics, type MetricsOptions } from './metrics.ts'
export { loadOpenTelemetry, observeWithOpenTelemetry, type OpenTelemetryApi } from './opentelemetry.ts'
export { pendingAge, type PendingAge, pendingCount, type PendingCount } from '../lease/backlog.ts'
export { isReaperAlive, reaperSomewhere, type RunState, workersRun } from './worker-checks.ts'
