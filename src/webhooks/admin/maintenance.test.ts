import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { withBuckets } from '../../../test/support/buckets.ts'
import { useDatabase, openSession } from '../../../test/support/database.ts'
import { type DeliveryState, deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { maintain, type WebhookMaintenanceOptions } from './maintenance.ts'
import { replay } from './replay.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url })
afterAll(async () => db.close())
beforeEach(async () => {
  await forgetWebhooks(db)
  // What this session has counted so far is handed in at the end of this statement, not in the middle of a test.
  await db.query({ text: 'select pg_stat_force_next_flush()' })
})

const DAY_MS = 86_400_000
const QUICK = { pauseMs: 0 }
const NOTHING = { delivered: 0, failed: 0, overdue: 0, endpointDeleted: 0, secrets: 0 }

async function rows(): Promise<DeliveryState[]> {
  return deliveryStates(db)
}

it('maintenance never reads the whole table of deliveries', async () => {
  const before = await sessions()
  const preparing = openDatabase({ url: database.url })
  await preparing.query({ text: 'alter table leasehold.webhook_outbox set (autovacuum_enabled = off)' })
  const endpoint = await makeEndpoint(preparing, { disabledReason: 'answered 410' })
  const agoMs = 2 * DAY_MS
  await makeDeliveries(preparing, endpoint, 15_000, { status: 'delivered', agoMs })
  await makeDeliveries(preparing, endpoint, 5_000, { status: 'failed', agoMs })
  await makeDeliveries(preparing, endpoint, 3_000, { agoMs })
  await makeDeliveries(preparing, endpoint, 3_000, { agoMs, key: `'key ' || n % 300` })
  await makeDeliveries(preparing, endpoint, 20_000)
  await preparing.query({ text: 'vacuum analyze leasehold.webhook_outbox' })
  await preparing.close()
  await onlySessions(before)
  const scans = await sequentialScans()
  const own = openDatabase({ url: database.url })
  const done = await maintain(own, { ...QUICK, deliveredMs: DAY_MS, failedMs: DAY_MS, maxAgeMs: DAY_MS })
  await own.close()
  await onlySessions(before)
  expect(done).toEqual({ ...NOTHING, delivered: 15_000, failed: 5_000, overdue: 6_000 })
  expect((await sequentialScans()) - scans).toBe(0)
})

/** The sessions of this database but the one that asks, which a pool may have replaced while the rows were prepared. */
async function sessions(): Promise<readonly number[]> {
  const { rows: found } = await db.query<{ pid: number }>({
    text: 'select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()',
  })
  return found.map(({ pid }) => pid)
}

/** Waits until no other session is left: a session hands in its statistics when it ends, which may take a while. */
async function onlySessions(known: readonly number[]): Promise<void> {
  const others = async (): Promise<number[]> => (await sessions()).filter((pid) => !known.includes(pid))
  await expect.poll(others, { timeout: 120_000, interval: 20 }).toEqual([])
}

async function sequentialScans(): Promise<number> {
  const { rows: found } = await db.query<{ scans: number }>({
    text: `select sum(seq_scan)::int as scans from pg_stat_user_tables
where schemaname = 'leasehold' and relname = 'webhook_outbox'`,
  })
  return found[0]?.scans ?? 0
}

describe('what has been due for too long', () => {
  it('has failed, with the code overdue, unless it is in flight; what is not due stays pending', async () => {
    const endpoint = await makeEndpoint(db, { disabledReason: 'answered 410' })
    const agoMs = 4 * DAY_MS + 60_000
    await makeDeliveries(db, endpoint, 2, { agoMs })
    await makeDeliveries(db, endpoint, 1, { agoMs, owner: 'a dispatcher' })
    await makeDeliveries(db, endpoint, 1, { agoMs: 4 * DAY_MS - 60_000 })
    expect(await maintain(db, QUICK)).toEqual({ ...NOTHING, overdue: 2 })
    expect((await rows()).map((row) => [row.delivery_status, row.last_error_code])).toEqual([
      ['failed', 'overdue'],
      ['failed', 'overdue'],
      ['pending', null],
      ['pending', null],
    ])
    expect((await rows())[0]?.last_error).toMatch(/^it was due for more than 345600 s/)
  })

  it('what an operator replays after a week is attempted, not given up at once', async () => {
    const endpoint = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 1, { status: 'failed', agoMs: 8 * DAY_MS })
    // Next to one that is given up.
    await makeDeliveries(db, endpoint, 1, { agoMs: 5 * DAY_MS })
    await replay(db, { ids: ['1'], principal: 'ada', reason: 'it is back' })
    expect(await maintain(db, QUICK)).toEqual({ ...NOTHING, overdue: 1 })
    expect((await rows()).map((row) => row.delivery_status)).toEqual(['pending', 'failed'])
  })

  it('an ordering key is given up as far as it is too old, in batches, and the rest of it goes on', async () => {
    const endpoint = await makeEndpoint(db, { ordered: true })
    await makeDeliveries(db, endpoint, 31, { key: `'k'`, agoMs: 4 * DAY_MS + 60_000 })
    await makeDeliveries(db, endpoint, 2, { key: `'k'` })
    expect(await maintain(db, { ...QUICK, batch: 4 })).toEqual({ ...NOTHING, overdue: 31 })
    const pending = (await rows()).filter((row) => row.delivery_status === 'pending')
    expect(pending.map(({ id }) => id)).toEqual(['32', '33'])
  })

  it('what waits for a head that is attempted, or in flight, is not given up, however old it is', async () => {
    const endpoint = await makeEndpoint(db, { ordered: true })
    const agoMs = 5 * DAY_MS
    await makeDeliveries(db, endpoint, 1, { key: `'retried'` })
    await makeDeliveries(db, endpoint, 5, { key: `'retried'`, agoMs })
    await makeDeliveries(db, endpoint, 1, { key: `'in flight'`, agoMs, owner: 'a dispatcher' })
    await makeDeliveries(db, endpoint, 5, { key: `'in flight'`, agoMs })
    expect(await maintain(db, QUICK)).toEqual(NOTHING)
  })

  it('suspects and ordering keys are found in any number of keys and endpoints', async () => {
    const agoMs = 5 * DAY_MS
    for (const ordered of [true, false]) {
      const endpoint = await makeEndpoint(db, { ordered })
      await makeDeliveries(db, endpoint, 50, { key: `'young ' || n` })
      await makeDeliveries(db, endpoint, 25, { key: `'old ' || n % 10`, agoMs })
      await makeDeliveries(db, endpoint, 7, { expiries: 2, agoMs })
    }
    expect(await maintain(db, { ...QUICK, batch: 3 })).toEqual({ ...NOTHING, overdue: 64 })
  })

  it('any number of runs may happen at once: each delivery is given up once', async () => {
    const endpoint = await makeEndpoint(db, { ordered: true })
    const agoMs = 4 * DAY_MS + 60_000
    await makeDeliveries(db, endpoint, 300, { key: `'key ' || n % 30`, agoMs })
    const rounds = await Promise.all([1, 2, 3].map(async () => maintain(db, { ...QUICK, batch: 20 })))
    const last = await maintain(db, QUICK)
    expect([...rounds, last].reduce((sum, { overdue }) => sum + overdue, 0)).toBe(300)
  })
})

describe('deliveries to an endpoint that was deleted', () => {
  it('have failed, with the code endpointDeleted, however young, with and without ordering keys; those of others stay', async () => {
    const other = await makeEndpoint(db)
    const deleted = await makeEndpoint(db, { ordered: true })
    await makeDeliveries(db, other, 2)
    await makeDeliveries(db, deleted, 3)
    await makeDeliveries(db, deleted, 10, { key: `'k'` })
    await makeDeliveries(db, deleted, 1, { owner: 'a dispatcher' })
    await db.query({ text: 'delete from leasehold.webhook_endpoints where id = $1', values: [deleted] })
    expect(await maintain(db, { ...QUICK, batch: 2 })).toEqual({ ...NOTHING, endpointDeleted: 13 })
    const states = await rows()
    expect(states.filter((row) => row.last_error_code === 'endpointDeleted')).toHaveLength(13)
    expect(states.filter((row) => row.delivery_status === 'pending').map(({ id }) => id)).toEqual([
      '1',
      '2',
      '16',
    ])
  })
})

describe('former secrets', () => {
  async function rotated(until: string): Promise<string> {
    const endpoint = await makeEndpoint(db)
    await db.query({
      text: `update leasehold.webhook_endpoints set previous_secret = 'old', previous_secret_until = now() + $2::interval
where id = $1`,
      values: [endpoint, until],
    })
    return endpoint
  }

  it('are forgotten when their window is over', async () => {
    await rotated('-1 second')
    const retained = await rotated('1 hour')
    expect(await maintain(db, QUICK)).toEqual({ ...NOTHING, secrets: 1 })
    const { rows: remaining } = await db.query({
      text: 'select id from leasehold.webhook_endpoints where previous_secret is not null',
    })
    expect(remaining).toEqual([{ id: retained }])
  })

  it('of an endpoint that somebody has locked are skipped, and stop nothing else', async () => {
    const locked = await rotated('-1 second')
    await rotated('-1 second')
    const client = await openSession(database.url)
    await client.query('begin')
    await client.query('select from leasehold.webhook_endpoints where id = $1 for update', [locked])
    expect(await maintain(db, QUICK)).toEqual({ ...NOTHING, secrets: 1 })
    await client.query('rollback')
    expect(await maintain(db, QUICK)).toEqual({ ...NOTHING, secrets: 1 })
  })

  it('where there are none no dispatcher is woken', async () => {
    await rotated('1 hour')
    const client = await openSession(database.url)
    const heard: unknown[] = []
    client.on('notification', ({ payload }) => heard.push(payload))
    await client.query('listen leasehold_wake')
    await maintain(db, QUICK)
    // Notifications come in the order of commits: had there been another, it would have come before this one.
    await db.query({ text: `select pg_notify('leasehold_wake', 'the end')` })
    await expect.poll(() => heard, { timeout: 20_000 }).toEqual(['the end'])
  })
})

it('maintenance applies to every bucket', async () => {
  await makeDeliveries(db, await makeEndpoint(db), 9, { status: 'delivered', agoMs: 10_000 })
  await makeDeliveries(db, await makeEndpoint(db), 9, { agoMs: 10_000 })
  await withBuckets(db, 3)
  await db.query({ text: 'update leasehold.webhook_outbox set bucket = id % 3' })
  const options = { ...QUICK, deliveredMs: 5_000, maxAgeMs: 5_000 }
  expect(await maintain(db, options)).toMatchObject({ delivered: 9, overdue: 9 })
})

it.each<[WebhookMaintenanceOptions, RegExp]>([
  [{ deliveredMs: -1 }, /deliveredMs is -1\..*milliseconds/],
  [{ maxAgeMs: Number.NaN }, /maxAgeMs is NaN\./],
  [{ batch: 0 }, /batch is 0\..*1 to 10000/],
  [{ pauseMs: -1 }, /pauseMs is -1/],
])('%j is refused', async (options, message) => {
  await expect(maintain(db, options)).rejects.toThrow(message)
})
