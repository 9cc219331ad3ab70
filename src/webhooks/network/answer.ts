import type { Dispatcher } from 'undici'

import { dead, done, type Outcome, retry } from '../../worker/completion/outcome.ts'

/** What a refusal for good (a 4xx that is neither 408 nor 429) makes of an event. */
export type WhenRefused = 'dead' | 'retry'

const LONGEST_RETRY_AFTER_MS = 24 * 60 * 60 * 1_000
const TRY_AGAIN = new Set([408, 425, 429])

/** 2xx is an acknowledgement. A redirect is not followed: it leads where nobody configured. */
export function outcomeOf(
  { statusCode, headers }: Pick<Dispatcher.ResponseData, 'statusCode' | 'headers'>,
  whenRefused: WhenRefused,
): Outcome {
  if (statusCode >= 200 && statusCode < 300) return done()
  const error = new Error(
    `HTTP ${statusCode}${statusCode >= 300 && statusCode < 400 ? ', not followed' : ''}`,
  )
  const isRefusal = statusCode >= 400 && statusCode < 500 && !TRY_AGAIN.has(statusCode)
  if (isRefusal && whenRefused === 'dead') return dead(error)
  const delayMs = retryAfterMs(headers['retry-after'], Date.now())
  return retry(delayMs === undefined ? { error } : { error, delayMs })
}

const HTTP_DATE = /^[A-Z][a-z]{2,8},? .*\d{2}:\d{2}:\d{2}/

/** Seconds or a date; never longer than a day. What cannot be read, or is over already, is none: the schedule decides. */
export function retryAfterMs(value: string | string[] | undefined, now: number): number | undefined {
  const text = (Array.isArray(value) ? value[0] : value)?.trim()
  if (text === undefined || text === '') return undefined
  const ms = /^\d+$/.test(text) ? Number(text) * 1_000 : HTTP_DATE.test(text) ? Date.parse(text) - now : 0
  return ms > 0 ? Math.min(ms, LONGEST_RETRY_AFTER_MS) : undefined
}
