/**
 * What a running process shows of itself: its log and its health. Lower layers know nothing of this folder; they
 * emit typed events, and whoever starts them writes those into the log.
 */
export { databaseAnswers, migrationsCurrent } from './database-checks.ts'
export { createHealth, type Check, type CheckResult, type Health } from './health.ts'
export { createLog, type Logger, type LogOptions, withoutUrlPasswords } from './log.ts'
