import type { DeliveryAttempt } from '../../webhooks/admin/show.ts'
import { columns, relative } from '../output.ts'

/** Each attempt on a line, the newest last: what it came to, and the beginning of the answer. */
export function attemptsText(
  attempts: readonly DeliveryAttempt[],
  now: Date,
  width: number | undefined,
): string {
  const lines = attempts.map(
    ({ attempt, startedAt, recordedAt, durationMs, status, errorCode, error, response }) => [
      String(attempt),
      relative(startedAt ?? recordedAt, now),
      durationMs === null ? '-' : `${durationMs} ms`,
      status === null ? '-' : String(status),
      errorCode ?? 'ok',
      [error, response].filter(Boolean).join(' · '),
    ],
  )
  return columns([['ATTEMPT', 'STARTED', 'TOOK', 'HTTP', 'RESULT', 'DETAILS'], ...lines], width)
}
