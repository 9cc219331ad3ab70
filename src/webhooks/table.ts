/** `webhook_outbox` as a lease table: how it is claimed, and what each outcome writes. */
import { leaseTable } from '../lease/declaration.ts'
import type { LeaseTable } from '../lease/table.ts'
import { DEFAULT_SCHEDULE, maxAttempts } from './schedule.ts'

export interface WebhookTableOptions {
  readonly schema?: string | undefined
  /** The delays after failed attempts, in ms; there is one attempt more than delays. */
  readonly schedule?: readonly number[] | undefined
}

/** A claimed delivery, as a dispatcher sees it. */
export interface DeliveryRow {
  readonly id: string
  readonly event_id: string
  readonly endpoint_id: string
  readonly event_type: string
  readonly ordering_key: string | null
  readonly body: string
  readonly headers: Readonly<Record<string, unknown>>
  readonly attempts: number
  readonly created_at: Date
}

/** How many attempts the history of a delivery has at most: more than a schedule makes, but replays could add more. */
const MAX_HISTORY = 100

/** Appends an attempt to the delivery's history, which the view `webhook_attempts` shows as rows. */
function appendToHistory(fields: Readonly<Record<string, string>>): string {
  const entry = Object.entries({
    attempt: 'attempts + 1',
    token: 'lease_token',
    ...fields,
    recorded_at: 'now()',
  })
  return `case when jsonb_array_length(history) >= ${MAX_HISTORY} then history - 0 else history end
      || jsonb_build_array(jsonb_build_object(${entry.map(([name, value]) => `'${name}', ${value}`).join(', ')}))`
}

const EXPIRED = {
  code: "'leaseExpired'",
  error:
    "'the lease expired: its dispatcher died, lost the database connection, or took longer than maxLeases allows'",
}

const STARTED_AT = "now() - $duration_ms * interval '1 millisecond'"

/** What an attempt writes: the `last_…` columns, and an entry in the history. */
const ATTEMPT = {
  last_attempt_at: `coalesce(${STARTED_AT}, last_attempt_at)`,
  last_duration_ms: '$duration_ms',
  last_status: '$status',
  last_error_code: '$code',
  last_error: '$error',
  last_response: '$response',
  history: appendToHistory({
    started_at: STARTED_AT,
    duration_ms: '$duration_ms',
    status: '$status',
    error_code: '$code',
    error: '$error',
    response: '$response',
  }),
} as const

const ATTEMPT_ARGS = {
  duration_ms: 'int',
  status: 'int',
  code: 'text',
  error: 'text',
  response: 'text',
} as const

export type WebhookOutcome = 'done' | 'retry' | 'dead' | 'postponed'

/** An expired lease is claimable at once (D5), and endpoints are the groups of the table. */
export function webhookTable({
  schema = 'leasehold',
  schedule = DEFAULT_SCHEDULE,
}: WebhookTableOptions = {}): LeaseTable<WebhookOutcome> {
  return leaseTable({
    table: { schema, name: 'webhook_outbox' },
    bucket: 'bucket',
    claimable: "delivery_status = 'pending'",
    availableAt: 'next_attempt_at',
    createdAt: 'created_at',
    leased: "delivery_status = 'pending' and lease_owner is not null",
    attempts: { max: maxAttempts(schedule) },
    retry: schedule,
    ordering: { key: 'ordering_key', unfinished: "delivery_status = 'pending'" },
    groups: 'endpoint_id',
    bytes: 'octet_length(body) + pg_column_size(headers)',
    writes: {
      release: { next_attempt_at: "greatest(next_attempt_at, now() + $delay_ms * interval '1 millisecond')" },
    },
    outcomes: {
      done: {
        set: { ...ATTEMPT, delivery_status: "'delivered'", delivered_at: 'now()' },
        args: ATTEMPT_ARGS,
      },
      retry: { set: ATTEMPT, args: ATTEMPT_ARGS },
      dead: {
        set: { ...ATTEMPT, delivery_status: "'failed'", failed_at: 'now()' },
        args: ATTEMPT_ARGS,
      },
      // No attempt was made, because the endpoint is not available. That counts neither as an attempt nor an expiry.
      postponed: {
        set: { next_attempt_at: "now() + $delay_ms * interval '1 millisecond'", expiries: '0' },
        args: { delay_ms: 'float8' },
      },
    },
    expired: EXPIRED,
    columns: [
      'id',
      'event_id',
      'endpoint_id',
      'event_type',
      'ordering_key',
      'body',
      'headers',
      'attempts',
      'created_at',
    ],
  })
}
