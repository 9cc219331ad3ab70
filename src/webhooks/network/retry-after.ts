const MAX_RETRY_AFTER_MS = 24 * 60 * 60 * 1_000
const HTTP_DATE = /^[A-Z][a-z]{2,8},? .*\d{2}:\d{2}:\d{2}/

/**
 * How long a Retry-After header asks to wait: seconds or a date, at most a day. Undefined if it cannot be read or is over
 * already; then the retry schedule decides.
 */
export function retryAfterMs(value: string | string[] | undefined, now: number): number | undefined {
  const text = (Array.isArray(value) ? value[0] : value)?.trim()
  if (text === undefined || text === '') return undefined
  const ms = /^\d+$/.test(text) ? Number(text) * 1_000 : HTTP_DATE.test(text) ? Date.parse(text) - now : 0
  return ms > 0 ? Math.min(ms, MAX_RETRY_AFTER_MS) : undefined
}
