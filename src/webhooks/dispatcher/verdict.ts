/** What an answer, or none, makes of a delivery. */
import { retryAfterMs } from '../network/answer.ts'
import { type Outcome, settleAs } from '../../worker/outcome.ts'
import type { Reply } from '../network/index.ts'
import { waitAfter } from '../schedule.ts'

export interface Judged {
  readonly outcome: Outcome
  /** Whether the endpoint is well: what it says of one payload is no sign that it is not. */
  readonly endpoint: 'well' | 'failing' | 'gone'
  /** It asked to be left alone for so long. */
  readonly restMs?: number
}

export interface Attempt {
  /** 1 for the first. */
  readonly attempt: number
  readonly schedule: readonly number[]
  readonly random: () => number
  /** Milliseconds since 1970. */
  readonly now: number
}

/** Statuses that speak of this request and not of the endpoint. */
const ABOUT_THE_PAYLOAD = new Set([400, 409, 413, 415, 422])
const ASKS_FOR_REST = new Set([429, 503])
const GONE = 410
/** A receiver may ask for a rest, but neither for none at all nor for ever. */
const SHORTEST_REST_MS = 1_000
const LONGEST_REST_MS = 3_600_000

export function judge(reply: Reply, attempt: Attempt): Judged {
  if (reply.kind === 'failed') return failed(reply, { code: reply.code, error: reply.message }, attempt)
  const { status } = reply
  if (status >= 200 && status < 300) {
    return { outcome: settleAs('done', facts(reply, { code: null, error: null })), endpoint: 'well' }
  }
  const reason = { code: `http${status}`, error: sentence(status) }
  if (status === GONE) return { outcome: settleAs('dead', facts(reply, reason)), endpoint: 'gone' }
  return failed(reply, reason, attempt)
}

interface Reason {
  readonly code: string | null
  readonly error: string | null
}

function failed(reply: Reply, reason: Reason, { attempt, schedule, random, now }: Attempt): Judged {
  const restMs = restOf(reply, now)
  const wait = waitAfter(attempt, schedule, random)
  const args = facts(reply, reason)
  const outcome =
    wait === undefined
      ? settleAs('dead', args)
      : settleAs('retry', { ...args, delay_ms: Math.max(wait, restMs ?? 0) })
  const aboutPayload = reply.kind === 'answered' && ABOUT_THE_PAYLOAD.has(reply.status)
  return { outcome, endpoint: aboutPayload ? 'well' : 'failing', ...(restMs === undefined ? {} : { restMs }) }
}

function restOf(reply: Reply, now: number): number | undefined {
  if (reply.kind === 'failed' || !ASKS_FOR_REST.has(reply.status)) return undefined
  const asked = retryAfterMs(reply.retryAfter, now)
  return asked === undefined ? undefined : Math.min(Math.max(asked, SHORTEST_REST_MS), LONGEST_REST_MS)
}

function facts(reply: Reply, { code, error }: Reason): Readonly<Record<string, unknown>> {
  const answered = reply.kind === 'answered' ? reply : undefined
  return {
    duration_ms: Math.round(reply.durationMs),
    status: answered?.status ?? null,
    code,
    error,
    response: answered?.excerpt ?? null,
  }
}

function sentence(status: number): string {
  if (status >= 300 && status < 400) return `answered with HTTP ${status}; redirects are not followed`
  return status === GONE
    ? 'answered with HTTP 410 Gone: the endpoint wants no more'
    : `answered with HTTP ${status}`
}
