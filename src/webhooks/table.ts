import { leaseTable } from '../lease/declaration.ts'
import type { LeaseTable } from '../lease/table.ts'

export interface WebhookTableOptions {
  readonly schema?: string | undefined
  /** After so many failed attempts a delivery has failed for good. */
  readonly maxAttempts?: number | undefined
}

/** The row as a dispatcher sees it. */
export interface DeliveryRow {
  readonly id: string
  readonly event_id: string
  readonly endpoint_id: string
  readonly event_type: string
  readonly body: string
  readonly headers: Readonly<Record<string, unknown>>
  readonly attempts: number
}

/** What is known of an attempt that was made; the database keeps it in `webhook_attempts` as well. */
const ATTEMPT = {
  last_attempt_at: "now() - $duration_ms * interval '1 millisecond'",
  last_duration_ms: '$duration_ms',
  last_status: '$status',
  last_error_code: '$code',
  last_error: '$error',
  last_response: '$response',
} as const

const ATTEMPT_ARGS = {
  duration_ms: 'int',
  status: 'int',
  code: 'text',
  error: 'text',
  response: 'text',
} as const

export type WebhookOutcome = 'done' | 'retry' | 'dead' | 'postponed'

/** Ten attempts over three days; see `schedule.ts`. */
export const DEFAULT_MAX_ATTEMPTS = 10

/** `webhook_outbox` as a lease table: an expired lease is claimable at once (D5), endpoints are its lanes. */
export function webhookTable({
  schema = 'leasehold',
  maxAttempts = DEFAULT_MAX_ATTEMPTS,
}: WebhookTableOptions = {}): LeaseTable<WebhookOutcome> {
  const isLast = `attempts + 1 >= ${maxAttempts}`
  return leaseTable({
    table: { schema, name: 'webhook_outbox' },
    id: 'id',
    bucket: 'bucket',
    lease: { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' },
    claimable: "delivery_status = 'pending'",
    availableAt: 'next_attempt_at',
    order: ['next_attempt_at', 'id'],
    onExpiry: 'claimable',
    held: "delivery_status = 'pending' and lease_owner is not null",
    attempts: 'attempts',
    exhausted: isLast,
    ordering: { key: 'line', behind: 'behind', waitedFor: "delivery_status = 'pending'" },
    lanes: 'endpoint_id',
    writes: {
      release: { next_attempt_at: "greatest(next_attempt_at, now() + $delay_ms * interval '1 millisecond')" },
      reap: {
        delivery_status: `case when ${isLast} then 'failed' else 'pending' end`,
        failed_at: `case when ${isLast} then now() end`,
        last_error_code: "'leaseExpired'",
        last_error: "'the lease expired: its dispatcher died, or lost the database'",
      },
    },
    outcomes: {
      done: {
        set: { ...ATTEMPT, delivery_status: "'delivered'", delivered_at: 'now()' },
        args: ATTEMPT_ARGS,
      },
      retry: {
        set: {
          ...ATTEMPT,
          attempts: 'attempts + 1',
          next_attempt_at: "now() + $delay_ms * interval '1 millisecond'",
        },
        args: { ...ATTEMPT_ARGS, delay_ms: 'float8' },
      },
      dead: {
        set: { ...ATTEMPT, attempts: 'attempts + 1', delivery_status: "'failed'", failed_at: 'now()' },
        args: ATTEMPT_ARGS,
      },
      /** No attempt was made: nobody can be reached at the moment, and it is not the delivery's fault. */
      postponed: {
        set: { next_attempt_at: "now() + $delay_ms * interval '1 millisecond'" },
        args: { delay_ms: 'float8' },
      },
    },
    columns: ['id', 'event_id', 'endpoint_id', 'event_type', 'body', 'headers', 'attempts'],
  })
}
