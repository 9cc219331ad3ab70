import { afterAll, beforeEach, expect, it } from 'vitest'
import { withBuckets } from '../../test/support/buckets.ts'
import { nodesOf, type PlanNode } from '../../test/support/statement-plans.ts'
import { useDatabase } from '../../test/support/database.ts'
import { makeEndpoint } from '../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../test/support/webhook-rows.ts'
import { enqueue } from '../outbox/index.ts'
import { outboxTable } from '../outbox/table.ts'
import { openDatabase } from '../postgres/index.ts'
import { jobTable } from '../sync/table.ts'
import { webhookTable } from '../webhooks/table.ts'
import { shapeOf } from './backlog.ts'
import { findLeases, heldLeases } from './leases.ts'
import { openLeaseStore } from './store.ts'
import { tableSql } from './table-sql.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({
    text: 'truncate leasehold.outbox, leasehold.webhook_outbox, leasehold.webhook_endpoints, leasehold.sync_jobs cascade',
  })
})

it('leases of all buckets are listed, those that end first at the top, each with its bucket', async () => {
  await withBuckets(db, 4)
  const events = Array.from({ length: 40 }, (_, n) => ({ type: 'a', payload: n, orderingKey: `key ${n}` }))
  await enqueue(db, events)
  for (const bucket of [3, 1, 2, 0]) {
    const store = await openLeaseStore(db, outboxTable(), { owner: `worker ${bucket}`, bucket })
    const { claimed } = await store.claim({ limit: 2, leaseMs: 10_000 + bucket * 10_000 })
    expect(claimed).toHaveLength(2)
  }
  const { leases, more } = await heldLeases(db, outboxTable(), { limit: 100 })
  expect(more).toBe(false)
  expect(leases.map(({ bucket }) => bucket)).toEqual([0, 0, 1, 1, 2, 2, 3, 3])
  for (const { owner, bucket } of leases) expect(owner).toBe(`worker ${bucket}`)
  const limited = await heldLeases(db, outboxTable(), { limit: 3 })
  expect(limited).toEqual({
    leases: leases.slice(0, 3).map((lease) => ({ ...lease, leftMs: expect.any(Number) })),
    more: true,
  })
  expect((await heldLeases(db, outboxTable(), { owner: 'worker 2', limit: 9 })).leases).toHaveLength(2)
})

it('a row without a lease is not listed, nor one that rests: its lease has an end, and no owner', async () => {
  await db.query({
    text: `create table public.rested (id int primary key, lease_owner text, lease_until timestamptz, lease_token bigint);
insert into public.rested values (1, null, now() + interval '1 h', 4), (2, null, null, 0), (3, 'w', now() + interval '1 h', 7)`,
  })
  const table = { ...outboxTable(), schema: 'public', name: 'rested', bucket: undefined, leased: undefined }
  const lease = { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' }
  const rested = { ...table, lease, writes: { claim: {}, release: {}, reap: {} } }
  const { leases } = await heldLeases(db, rested, { limit: 10 })
  expect(leases).toMatchObject([{ id: '3', owner: 'w', token: '7', since: null, bucket: null }])
})

it.each([
  ['outbox', outboxTable(), 'outbox_in_flight'],
  ['webhook_outbox', webhookTable(), 'webhook_outbox_in_flight'],
  ['sync_jobs', jobTable(), 'sync_jobs_leased'],
] as const)(
  'the leases of %s are found along the index that the reaper reads',
  async (name, table, index) => {
    const endpoint = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 5_000, { status: 'delivered' })
    await makeDeliveries(db, endpoint, 20, { owner: 'w' })
    await db.query({
      text: `insert into leasehold.outbox (event_type, payload, status, published_at)
  select 'a', '1', 'PUBLISHED', now() from generate_series(1, 5000);
insert into leasehold.sync_jobs (definition, matrix_id, completed_at) select 'd', n::text, now() from generate_series(1, 5000) as n;
analyze leasehold.${name}`,
    })
    const { text, parameters } = findLeases(tableSql(table, await shapeOf(db, table)))
    const values: Readonly<Record<string, unknown>> = { bucket: 0, owner: null, limit: 50 }
    const { rows } = await db.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
      text: `explain (format json) ${text}`,
      values: parameters.map((parameter) => values[parameter]),
    })
    const nodes = nodesOf(rows[0]?.['QUERY PLAN'][0].Plan ?? { 'Node Type': 'nothing' })
    expect(nodes.flatMap((node) => node['Index Name'] ?? [])).toEqual([index])
  },
)
