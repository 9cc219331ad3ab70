/** Decides what a response, or the lack of one, means for the delivery and for its endpoint. */
import { type Outcome, settleAs } from '../../worker/completion/outcome.ts'
import { retryAfterMs } from '../network/retry-after.ts'
import type { Reply } from '../network/post.ts'
import { retryDelayMs } from '../schedule.ts'

export interface Judgement {
  readonly outcome: Outcome
  /** Whether the endpoint works, fails, or wants no more deliveries and must be disabled. */
  readonly endpoint: 'healthy' | 'failing' | 'disable'
  /** How long the endpoint asked not to be called. */
  readonly pauseMs?: number
}

export interface Attempt {
  /** 1 for the first. */
  readonly attempt: number
  readonly schedule: readonly number[]
  readonly random: () => number
  /** Milliseconds since 1970. */
  readonly now: number
}

/** Statuses that reject this payload. They do not mean that the endpoint fails. */
const PAYLOAD_REJECTED = new Set([400, 409, 413, 415, 422])
/** Statuses whose `Retry-After` is respected. */
const PAUSE_REQUESTED = new Set([429, 503])
const HTTP_GONE = 410
const MIN_PAUSE_MS = 1_000
const MAX_PAUSE_MS = 3_600_000

export function judgeResponse(reply: Reply, attempt: Attempt): Judgement {
  if (reply.kind === 'failed') return judgeFailure(reply, { code: reply.code, error: reply.message }, attempt)
  const { status } = reply
  if (status >= 200 && status < 300) {
    const args = attemptArgs(reply, { code: null, error: null })
    return { outcome: settleAs('done', args), endpoint: 'healthy' }
  }
  const reason = { code: `http${status}`, error: errorOf(status) }
  if (status === HTTP_GONE) {
    return { outcome: settleAs('dead', attemptArgs(reply, reason)), endpoint: 'disable' }
  }
  return judgeFailure(reply, reason, attempt)
}

interface Reason {
  readonly code: string | null
  readonly error: string | null
}

function judgeFailure(reply: Reply, reason: Reason, { attempt, schedule, random, now }: Attempt): Judgement {
  const pauseMs = requestedPauseMs(reply, now)
  const delayMs = retryDelayMs(attempt, schedule, random)
  const args = attemptArgs(reply, reason)
  const outcome =
    delayMs === undefined
      ? settleAs('dead', args)
      : settleAs('retry', { ...args, delay_ms: Math.max(delayMs, pauseMs ?? 0) })
  const isPayloadRejected = reply.kind === 'answered' && PAYLOAD_REJECTED.has(reply.status)
  return {
    outcome,
    endpoint: isPayloadRejected ? 'healthy' : 'failing',
    ...(pauseMs === undefined ? {} : { pauseMs }),
  }
}

function requestedPauseMs(reply: Reply, now: number): number | undefined {
  if (reply.kind === 'failed' || !PAUSE_REQUESTED.has(reply.status)) return undefined
  const requested = retryAfterMs(reply.retryAfter, now)
  return requested === undefined ? undefined : Math.min(Math.max(requested, MIN_PAUSE_MS), MAX_PAUSE_MS)
}

/** What the settlement records of the attempt: the arguments that `table.ts` declares. */
function attemptArgs(reply: Reply, { code, error }: Reason): Readonly<Record<string, unknown>> {
  const answered = reply.kind === 'answered' ? reply : undefined
  return {
    duration_ms: Math.round(reply.durationMs),
    status: answered?.status ?? null,
    code,
    error,
    response: answered?.excerpt ?? null,
  }
}

function errorOf(status: number): string {
  if (status >= 300 && status < 400) return `answered with HTTP ${status}; redirects are not followed`
  return status === HTTP_GONE
    ? 'answered with HTTP 410 Gone: the endpoint wants no more'
    : `answered with HTTP ${status}`
}
