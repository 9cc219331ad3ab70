/** webhook_outbox in the conformance suite of lease tables. table.test.ts tests what PostgreSQL itself refuses. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { deliveries } from '../../test/support/running-dispatcher.ts'
import { openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { leaseConformance } from '../testing/index.ts'
import { webhookTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const ENDPOINTS = ['00000000-0000-7000-8000-00000000000a', '00000000-0000-7000-8000-00000000000b'] as const
const LEASE = { limit: 1, leaseMs: 60_000 }
const GROUPS = ENDPOINTS.map((key) => ({ group: key, room: 10 }))
const DONE = { duration_ms: 1, status: 200, code: null, error: null, response: 'thank you' }

beforeEach(async () => db.query({ text: 'truncate leasehold.webhook_outbox restart identity' }))
afterAll(async () => db.close())
// Autovacuum could analyze the table while it is empty; a batch of 10,000 would then be planned by those statistics.
beforeAll(async () =>
  db.query({ text: 'alter table leasehold.webhook_outbox set (autovacuum_enabled = off)' }),
)

/** Writes deliveries, half of them for each endpoint, and returns their ids. */
async function write(count: number, orderingKey = 'null::text'): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ordering_key)
      select ($2::uuid[])[1 + (n * 2 > $1::int and $1 > 1)::int], 'test.happened', '{}', ${orderingKey}
      from generate_series(1, $1::int) as n returning id`,
    values: [count, ENDPOINTS],
  })
  return rows.map(({ id }) => id)
}

describe('D5, D6: webhook_outbox passes the conformance suite of lease tables', () => {
  const cases = leaseConformance({
    db,
    table: webhookTable(),
    groups: ENDPOINTS,
    empty: async () => {
      await db.query({ text: 'truncate leasehold.webhook_outbox' })
    },
    insert: async (count) => write(count, "case when n % 2 = 0 then 'key ' || n end"),
    final: { outcome: 'done', args: DONE },
    bucket: 0,
  })
  it.each(cases.map(({ name, run }) => [name, run] as const))('%s', async (_, run) => {
    await expect(run()).resolves.toBeUndefined()
  })
})

it('D3: the lease_token grows by one with every claim', async () => {
  await write(1)
  const store = await openLeaseStore(db, webhookTable(), { owner: 'd', bucket: 0 })
  const tokens: bigint[] = []
  for (let claims = 0; claims < 3; claims += 1) {
    const { claimed } = await store.claim({ ...LEASE, groups: GROUPS })
    tokens.push(BigInt((await deliveries(db))[0]?.lease_token ?? 0))
    await store.release(claimed.map(({ lease }) => lease))
  }
  const [first = 0n] = tokens
  expect(tokens).toEqual([first, first + 1n, first + 2n])
})
