import { NodeTracerProvider } from '@opentelemetry/sdk-trace-node'
import { context, propagation, trace } from '@opentelemetry/api'
import { afterAll, beforeEach, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../test/support/database.ts'
import { useRelays, write } from '../test/support/running-relay.ts'
import { emptySync, makeChunks, makeJob } from '../test/support/sync-rows.ts'
import { makeEndpoint } from '../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../test/support/webhook-rows.ts'
import { A_TOKEN } from '../test/support/tokens.ts'
import { openLeaseStore } from './lease/store.ts'
import { listEvents, showEvent } from './outbox/admin/browse.ts'
import type { OutboxEvent } from './outbox/event.ts'
import { outboxTable } from './outbox/table.ts'
import { openDatabase } from './postgres/database.ts'
import { listChunks } from './sync/admin/chunks.ts'
import { listJobs } from './sync/admin/jobs.ts'
import { progress } from './sync/admin/progress.ts'
import { listDeliveries, showDelivery } from './webhooks/admin/browse.ts'
import { webhookTable } from './webhooks/table.ts'
import { Events } from './worker/index.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
afterAll(async () => db.close())
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox restart identity' }))

/** What arrives on the other side of JSON. */
function throughJson(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value))
}

it.each([
  { maxBatch: 1, traced: false },
  { maxBatch: 10, traced: false },
  { maxBatch: 1, traced: true },
  { maxBatch: 10, traced: true },
])(
  'an event that a publisher gets survives JSON.stringify ($maxBatch at once, traced: $traced)',
  async (given) => {
    if (given.traced) {
      new NodeTracerProvider().register()
      onTestFinished(() => {
        trace.disable()
        context.disable()
        propagation.disable()
      })
    }
    await write(db, 'a')
    const events = new Events()
    const settled = events.next('settled')
    const published: OutboxEvent[] = []
    const publisher = {
      name: 'test',
      maxBatch: given.maxBatch,
      publish: async (some: readonly OutboxEvent[]) => void published.push(...some),
    }
    await startRelay({ publisher }, { events })
    await settled
    const [event] = published
    expect(event?.token).toBeTypeOf('bigint')
    expect(throughJson(event)).toEqual({
      id: '1',
      eventId: event?.eventId,
      type: 'test.happened',
      payload: { n: 1 },
      orderingKey: 'a',
      headers: event?.headers,
      createdAt: event?.createdAt.toISOString(),
      attempt: 1,
      token: String(event?.token),
    })
  },
)

it('the typed events of a runtime survive JSON.stringify', async () => {
  await write(db, null)
  const events = new Events()
  const started = events.next('started')
  await startRelay({ publisher: { name: 'test', maxBatch: 1, publish: async () => {} } }, { events })
  const event = await started
  expect(event.token).toBeTypeOf('bigint')
  expect(throughJson(event)).toMatchObject({
    type: 'started',
    id: '1',
    token: String(event.token),
    attempt: 1,
  })
})

it('what a lease store claims and reaps survives JSON.stringify', async () => {
  await write(db, null)
  const store = await openLeaseStore(db, outboxTable(), { owner: 'me' })
  const { claimed } = await store.claim({ limit: 1, leaseMs: 1 })
  const token = String(claimed[0]?.lease.token)
  expect(token).toMatch(/^\d+$/)
  expect(throughJson(claimed)).toMatchObject([{ lease: { id: '1', owner: 'me', token }, row: { id: '1' } }])
  await db.query({ text: "update leasehold.outbox set locked_until = now() - interval '1 minute'" })
  expect(throughJson(await store.reap())).toMatchObject([{ id: '1', token }])
  expect(throughJson(await showEvent(db, '1'))).toMatchObject({
    history: [{ outcome: 'expired', token }],
  })
})

it('events, deliveries, jobs and chunks that an operator lists survive JSON.stringify', async () => {
  await write(db, null)
  expect(throughJson(await listEvents(db))).toMatchObject({ events: [{ id: '1', token: '0' }] })
  expect(throughJson(await showEvent(db, '1'))).toMatchObject({ id: '1', token: '0', payload: { n: 1 } })

  const [delivery = ''] = await makeDeliveries(db, await makeEndpoint(db), 1)
  const store = await openLeaseStore(db, webhookTable(), { owner: 'me' })
  await store.claim({ ids: [delivery], limit: 1, leaseMs: 60_000 })
  expect(throughJson(await listDeliveries(db))).toMatchObject({
    deliveries: [{ id: delivery, token: A_TOKEN }],
  })
  expect(throughJson(await showDelivery(db, delivery))).toMatchObject({ id: delivery, token: A_TOKEN })

  await emptySync(db)
  const job = await makeJob(db)
  await makeChunks(db, job, 1, { state: 'running', owner: 'me' })
  expect(throughJson(await listJobs(db))).toMatchObject({ jobs: [{ id: job, token: expect.any(String) }] })
  expect(throughJson(await listChunks(db, job))).toMatchObject({ chunks: [{ token: expect.any(String) }] })
  expect(throughJson(await progress(db, job))).toMatchObject({
    id: job,
    token: expect.any(String),
    working: [{ token: expect.any(String) }],
  })
})
