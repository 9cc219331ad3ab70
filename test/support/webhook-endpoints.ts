/** Endpoints as rows, for tests in which nothing is signed. */
import { type Database } from '../../src/postgres/database.ts'

export interface MadeEndpoint {
  readonly tenant?: string
  readonly eventTypes?: readonly string[]
  readonly ordered?: boolean
  readonly enabled?: boolean
}

/** Writes one and returns its id. */
export async function makeEndpoint(db: Database, made: MadeEndpoint = {}): Promise<string> {
  const { tenant = '', eventTypes = [], ordered = false, enabled = true } = made
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.webhook_endpoints (tenant, url, event_types, ordered, enabled, disabled_at, secret)
values ($1, 'https://receiver.example/hooks', $2, $3, $4, case when not $4::boolean then now() end, 'of no use')
returning id::text as id`,
    values: [tenant, eventTypes, ordered, enabled],
  })
  return rows[0]?.id ?? ''
}

export interface WrittenDelivery {
  readonly event_id: string
  readonly endpoint_id: string
  readonly event_type: string
  readonly ordering_key: string | null
  readonly line: string | null
  readonly body: string
  readonly headers: Readonly<Record<string, string>>
  readonly next_attempt_at: Date
  readonly created_at: Date
}

/** In the order in which they were written. */
export async function writtenDeliveries(db: Database): Promise<WrittenDelivery[]> {
  const text = `select event_id::text as event_id, endpoint_id::text as endpoint_id, event_type, ordering_key, line, body,
  headers, next_attempt_at, created_at from leasehold.webhook_outbox order by id`
  return (await db.query<WrittenDelivery>({ text })).rows
}

export async function forgetWebhooks(db: Database): Promise<void> {
  await db.query({
    text: 'truncate leasehold.webhook_endpoints, leasehold.webhook_outbox, leasehold.webhook_attempts, leasehold.audit',
  })
}
