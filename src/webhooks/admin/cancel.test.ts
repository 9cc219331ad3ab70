import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { withBuckets } from '../../../test/support/buckets.ts'
import { useDatabase, openSession } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { type DeliveryState, deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { type LeaseStore, openLeaseStore } from '../../lease/store.ts'
import { openDatabase } from '../../postgres/database.ts'
import { webhookTable } from '../table.ts'
import { cancel, type CancelOptions } from './cancel.ts'
import { replay } from './replay.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

const WHO = { principal: 'ada', reason: 'sent by mistake' }
const PENDING = { status: 'pending' } as const

async function rows(): Promise<DeliveryState[]> {
  return deliveryStates(db)
}

async function dispatching(): Promise<LeaseStore<{ id: string }>> {
  return openLeaseStore(db, webhookTable(), { owner: 'a dispatcher' })
}

/** What a dispatcher gets for this endpoint. */
async function claim(store: LeaseStore<{ id: string }>, endpoint: string): Promise<string[]> {
  const groups = [{ group: endpoint, room: 10 }]
  const { claimed } = await store.claim({ limit: 10, leaseMs: 60_000, groups })
  return claimed.map(({ row }) => row.id)
}

async function waitingForLocks(): Promise<number | null> {
  const text = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
  return (await db.query({ text })).rowCount
}

it('a pending delivery has failed, with the code cancelled, and who and why; nothing else of it changes', async () => {
  const endpoint = await makeEndpoint(db)
  const ids = await makeDeliveries(db, endpoint, 2, { attempts: 3 })
  const [before, other] = await rows()
  expect(await cancel(db, { ids: ids.slice(0, 1), ...WHO })).toMatchObject({
    matched: 1,
    changed: 1,
    counts: { inFlight: 0 },
    finished: true,
  })
  expect(await rows()).toEqual([
    {
      ...before,
      delivery_status: 'failed',
      failed_at: expect.any(Date),
      last_error_code: 'cancelled',
      last_error: 'cancelled by ada: sent by mistake',
    },
    other,
  ])
  expect(await auditEntries(db)).toMatchObject([
    {
      principal: 'ada',
      action: 'webhooks.cancel',
      target: '1',
      details: { reason: 'sent by mistake', changed: 1, lastBatch: { firstId: '1', lastId: '1' } },
    },
  ])
  const { rows: attempts } = await db.query({ text: 'select from leasehold.webhook_attempts' })
  expect(attempts).toEqual([])
})

it('deliveries in flight are not cancelled, and counted; finished ones do not match', async () => {
  const endpoint = await makeEndpoint(db)
  await makeDeliveries(db, endpoint, 1, { status: 'delivered' })
  await makeDeliveries(db, endpoint, 1, { status: 'failed', error: 'HTTP 500' })
  const store = await dispatching()
  await makeDeliveries(db, endpoint, 2)
  expect(await claim(store, endpoint)).toEqual(['3', '4'])
  await makeDeliveries(db, endpoint, 1)
  const before = await rows()
  expect(await cancel(db, { filter: { endpoint }, ...WHO })).toMatchObject({
    matched: 1,
    changed: 1,
    counts: { inFlight: 2 },
  })
  const after = await rows()
  expect(after.slice(0, 4)).toEqual(before.slice(0, 4))
  expect(after[4]).toMatchObject({ last_error_code: 'cancelled' })
})

it('one whose lease is over is cancelled, and its former dispatcher is fenced off', async () => {
  const endpoint = await makeEndpoint(db)
  await makeDeliveries(db, endpoint, 1)
  const store = await dispatching()
  const { claimed } = await store.claim({ limit: 1, leaseMs: 60_000, groups: [{ group: endpoint, room: 1 }] })
  await db.query({ text: "update leasehold.webhook_outbox set lease_until = now() - interval '1 second'" })
  expect(await cancel(db, { ids: ['1'], ...WHO })).toMatchObject({ changed: 1 })
  const leases = claimed.map(({ lease }) => lease)
  expect((await store.release(leases)).fencedOff).toEqual(leases)
  expect((await rows())[0]).toMatchObject({ delivery_status: 'failed', lease_owner: null })
})

it('one that a dispatcher claims at this moment is not cancelled', async () => {
  const endpoint = await makeEndpoint(db)
  await makeDeliveries(db, endpoint, 2)
  const client = await openSession(database.url)
  await client.query('begin')
  await client.query(
    `update leasehold.webhook_outbox set lease_owner = 'x', lease_until = now() + interval '1 hour', lease_token = 1
where id = 1`,
  )
  const cancelling = cancel(db, { filter: PENDING, ...WHO })
  await expect.poll(async () => waitingForLocks(), { timeout: 120_000 }).toBe(1)
  await client.query('commit')
  expect(await cancelling).toMatchObject({ matched: 2, changed: 1 })
  expect((await rows()).map((row) => [row.delivery_status, row.lease_owner])).toEqual([
    ['pending', 'x'],
    ['failed', null],
  ])
})

describe('an ordering key goes on', () => {
  const key = `'k'`

  it('when its head is cancelled: the next delivery is claimed', async () => {
    const endpoint = await makeEndpoint(db, { ordered: true })
    await makeDeliveries(db, endpoint, 3, { key })
    const store = await dispatching()
    const { claimed } = await store.claim({
      limit: 10,
      leaseMs: 60_000,
      groups: [{ group: endpoint, room: 10 }],
    })
    expect(claimed.map(({ row }) => row.id)).toEqual(['1'])
    await store.release(claimed.map(({ lease }) => lease))
    expect(await cancel(db, { ids: ['1'], ...WHO })).toMatchObject({ changed: 1 })
    expect(await claim(store, endpoint)).toEqual(['2'])
  })

  it('in its order, when a delivery in the middle is cancelled', async () => {
    const endpoint = await makeEndpoint(db, { ordered: true })
    await makeDeliveries(db, endpoint, 3, { key })
    const store = await dispatching()
    const { claimed } = await store.claim({
      limit: 10,
      leaseMs: 60_000,
      groups: [{ group: endpoint, room: 10 }],
    })
    await cancel(db, { ids: ['2'], ...WHO })
    expect(await claim(store, endpoint)).toEqual([])
    const args = claimed.map(() => ({ duration_ms: 1, status: 200, code: null, error: null, response: null }))
    await store.settle(
      'done',
      claimed.map(({ lease }) => lease),
      { args },
    )
    expect(await claim(store, endpoint)).toEqual(['3'])
  })

  it('with a replayed delivery first: the later ones wait for it', async () => {
    const endpoint = await makeEndpoint(db, { ordered: true })
    await makeDeliveries(db, endpoint, 3, { key })
    await cancel(db, { ids: ['1'], ...WHO })
    await replay(db, { ids: ['1'], ...WHO })
    expect(await claim(await dispatching(), endpoint)).toEqual(['1'])
  })
})

it('a cancel by filter runs in batches, each with its audit entry; a dry run counts and changes nothing', async () => {
  const endpoint = await makeEndpoint(db)
  await makeDeliveries(db, endpoint, 2_500)
  await makeDeliveries(db, endpoint, 300, { type: 'order.sent' })
  const filter = { type: 'order.paid' }
  expect(await cancel(db, { filter, dryRun: true })).toMatchObject({ matched: 2_500, changed: 0 })
  expect((await rows()).every((row) => row.delivery_status === 'pending')).toBe(true)
  expect(await cancel(db, { filter, ...WHO })).toMatchObject({ matched: 2_500, changed: 2_500 })
  expect((await auditEntries(db)).map(({ details }) => details['changed'])).toEqual([1_000, 2_000, 2_500])
  expect((await rows()).filter((row) => row.delivery_status === 'pending')).toHaveLength(300)
  expect(await cancel(db, { filter: PENDING, limit: 100, ...WHO })).toMatchObject({
    matched: 100,
    changed: 100,
  })
})

it('a cancel that is stopped leaves the rest unchanged', async () => {
  await makeDeliveries(db, await makeEndpoint(db), 2_500)
  const controller = new AbortController()
  const onProgress = (): void => controller.abort()
  const done = await cancel(db, { filter: PENDING, ...WHO, signal: controller.signal, onProgress })
  expect(done).toMatchObject({ changed: 1_000, finished: false })
  expect((await rows()).filter((row) => row.delivery_status === 'pending')).toHaveLength(1_500)
})

it('deliveries in every bucket are cancelled', async () => {
  await makeDeliveries(db, await makeEndpoint(db), 6)
  await withBuckets(db, 3)
  await db.query({ text: 'update leasehold.webhook_outbox set bucket = id % 3' })
  expect(await cancel(db, { filter: PENDING, ...WHO })).toMatchObject({ matched: 6, changed: 6 })
})

describe('a cancel is refused, and changes nothing,', () => {
  it.each<[string, CancelOptions, RegExp]>([
    ['with nothing to choose by', { ...WHO }, /filter is \{\}.*Give ids/],
    ['without a reason', { filter: PENDING, principal: 'ada' }, /reason is missing/],
    ['without a principal', { filter: PENDING, reason: 'x' }, /principal is missing.*Say who/],
    ['for what has failed', { filter: { status: 'failed' }, ...WHO }, /status is "failed".*Only pending/],
    ['for what failed since', { filter: { failedSince: new Date() }, ...WHO }, /status is "failed"/],
    ['for no delivery', { ids: ['x'], ...WHO }, /id is "x"/],
  ])('%s', async (_, options, message) => {
    await makeDeliveries(db, await makeEndpoint(db), 1)
    const before = await rows()
    await expect(cancel(db, options)).rejects.toThrow(message)
    expect(await rows()).toEqual(before)
  })
})
