import type { Database } from '../../src/postgres/database.ts'
import type { RuntimeOptions } from '../../src/worker/index.ts'
import { dispatcher, type DispatcherOptions } from '../../src/webhooks/dispatcher/dispatcher.ts'
import { LOOPBACK } from '../../src/webhooks/network/policy.ts'
import { type Running, useRuntimes } from './runtimes.ts'
import { SECRET_KEY } from './webhook-endpoints.ts'

/** Starts dispatchers in this process that may send to loopback. They are stopped after each test. */
export function useDispatchers(databaseUrl: string) {
  const start = useRuntimes(databaseUrl)
  return async (options: DispatcherOptions = {}, more?: Partial<RuntimeOptions>): Promise<Running> => {
    const fixed = { secretKey: SECRET_KEY, network: { allow: LOOPBACK }, retention: false } as const
    return start([dispatcher({ ...fixed, ...options })], more)
  }
}

/** Sends `{ n: 1 }`, `{ n: 2 }`, … to every endpoint, with these ordering keys. */
export async function sendAll(db: Database, ...keys: readonly (string | null)[]): Promise<void> {
  await db.query({
    text: `select leasehold.send_webhook('test.happened', jsonb_build_object('n', n), ordering_key => key)
      from (select key, n from unnest($1::text[]) with ordinality as k (key, n) order by n) as keys`,
    values: [keys],
  })
}

export interface DeliveryRecord {
  readonly id: string
  readonly event_id: string
  readonly endpoint_id: string
  readonly delivery_status: string
  readonly attempts: number
  readonly next_attempt_at: Date
  readonly lease_owner: string | null
  readonly lease_until: Date | null
  readonly lease_token: string
  readonly expiries: number
  readonly last_status: number | null
  readonly last_error_code: string | null
  readonly last_error: string | null
  readonly last_response: string | null
}

export async function deliveries(db: Database): Promise<DeliveryRecord[]> {
  return (await db.query<DeliveryRecord>({ text: 'select * from leasehold.webhook_outbox order by id' })).rows
}

/** How many deliveries are in each state. */
export async function deliveryStatuses(db: Database): Promise<Record<string, number>> {
  const { rows } = await db.query<{ status: string; count: number }>({
    text: 'select delivery_status as status, count(*)::int as count from leasehold.webhook_outbox group by 1',
  })
  return Object.fromEntries(rows.map(({ status, count }) => [status, count]))
}
