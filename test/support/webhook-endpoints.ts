import type { Database } from '../../src/postgres/database.ts'
import { encryptHeaders } from '../../src/webhooks/endpoints/secrets.ts'
import { encrypt, secretKey } from '../../src/webhooks/signing/encryption.ts'
import { newSecret } from '../../src/webhooks/signing/secret.ts'

/** The key that encrypts the secrets of the tests. */
export const SECRET_KEY = Buffer.alloc(32, 7).toString('base64')

type Columns = Readonly<Record<string, unknown>> & { readonly headers?: Readonly<Record<string, string>> }

export interface MadeEndpoint {
  readonly tenant?: string
  readonly url?: string
  readonly eventTypes?: readonly string[]
  readonly ordered?: boolean
  readonly enabled?: boolean
  readonly disabledReason?: string
}

/** Inserts an endpoint without a usable secret, for tests that sign nothing. Returns its id. */
export async function makeEndpoint(db: Database, made: MadeEndpoint = {}): Promise<string> {
  const { tenant = '', url = 'https://receiver.example/hook', eventTypes = [], ordered = false } = made
  const { disabledReason = null, enabled = disabledReason === null } = made
  const disabled = { enabled, disabled_reason: disabledReason, disabled_at: enabled ? null : new Date() }
  return insertEndpoint(db, { tenant, url, event_types: eventTypes, ordered, secret: 'none', ...disabled })
}

export interface SignedEndpoint {
  readonly id: string
  readonly secret: string
}

/**
 * Inserts an endpoint with a secret, and with these other columns; header values are encrypted. Its timeout is the longest: a request that a test holds
 * back must not fail because the machine is slow.
 */
export async function addEndpoint(db: Database, url: string, columns: Columns = {}): Promise<SignedEndpoint> {
  // The id of the endpoint is needed to encrypt its secret.
  const { rows } = await db.query<{ id: string }>({ text: 'select leasehold.new_event_id() as id' })
  const id = rows[0]?.id ?? ''
  const secret = newSecret('v1')
  const key = secretKey(SECRET_KEY)
  const { headers = {}, ...others } = columns
  const encrypted = { secret: encrypt(key, secret, id), headers: encryptHeaders(key, id, headers) }
  await insertEndpoint(db, { id, url, ...encrypted, timeout_ms: 300_000, ...others })
  return { id, secret }
}

async function insertEndpoint(db: Database, columns: Columns): Promise<string> {
  const names = Object.keys(columns)
  const values = names.map((_, i) => `$${i + 1}`)
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.webhook_endpoints (${names.join(', ')}) values (${values.join(', ')})
returning id::text as id`,
    values: Object.values(columns),
  })
  return rows[0]?.id ?? ''
}

export interface WrittenDelivery {
  readonly event_id: string
  readonly endpoint_id: string
  readonly event_type: string
  readonly ordering_key: string | null
  readonly body: string
  readonly headers: Readonly<Record<string, string>>
  readonly next_attempt_at: Date
  readonly created_at: Date
}

/** The deliveries, in the order of insertion. */
export async function writtenDeliveries(db: Database): Promise<WrittenDelivery[]> {
  const text = `select event_id::text as event_id, endpoint_id::text as endpoint_id, event_type, ordering_key, body,
  headers, next_attempt_at, created_at from leasehold.webhook_outbox order by id`
  return (await db.query<WrittenDelivery>({ text })).rows
}

export async function forgetWebhooks(db: Database): Promise<void> {
  await db.query({
    text: `truncate leasehold.webhook_outbox, leasehold.webhook_endpoints, leasehold.audit
restart identity`,
  })
}
