/**
 * The tables as `leasehold migrate --citus` makes them. Everything runs on PostgreSQL, with the statements that are sent to
 * Citus; and on a real Citus as well, if LEASEHOLD_TEST_CITUS_URL is the URL of a database on its coordinator.
 */
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { allStatements, leaseStatements } from '../src/lease/statements.ts'
import { inspectTable } from '../src/lease/inspect.ts'
import {
  applyRetention,
  countByStatus,
  createOutbox,
  keysHeldUp,
  listEvents,
  outboxTable,
  replay,
  retryNow,
  showEvent,
  unblock,
} from '../src/outbox/index.ts'
import { type Database, migrate, openDatabase } from '../src/postgres/index.ts'
import {
  applyRetention as applyWebhookRetention,
  cancel,
  countDeliveries,
  createWebhooks,
  endpoints,
  listDeliveries,
  maintain,
  replay as replayDeliveries,
  retryNow as retryDeliveries,
  showDelivery,
  summariseEndpoints,
  webhookTable,
} from '../src/webhooks/index.ts'
import { retry } from '../src/worker/index.ts'
import {
  APPLICATIONS,
  createApplicationTables,
  effects,
  finished,
  leasedBy,
  produce,
  startApplications,
} from './support/all-applications.ts'
import { CITUS_URL, distributeWithCitus, distributeWithoutCitus, taskCounts } from './support/citus.ts'
import { useDatabase } from './support/database.ts'
import { useProcesses } from './support/processes.ts'
import { hold, useReceivers } from './support/receiver.ts'
import { deliveryStatuses, useDispatchers } from './support/running-dispatcher.ts'
import { recording, records, statuses, useRelays } from './support/running-relay.ts'
import { settled } from './support/running-worker.ts'
import { addEndpoint, SECRET_KEY } from './support/webhook-endpoints.ts'

const BUCKETS = 64
const WHO = { principal: 'ada', reason: 'a test' }
const POLL = { timeout: 200_000, interval: 50 }
const plain = useDatabase()
const processes = useProcesses()
const receivers = useReceivers()

it('--citus on a server without the extension is refused, and nothing is changed', async () => {
  const db = openDatabase({ url: plain.url })
  try {
    const refused = migrate(db, { schema: 'other', citus: true })
    await expect(refused).rejects.toThrow(
      /does not have the extension citus\. Nothing was changed\. Install Citus/,
    )
    const { rows } = await db.query({ text: "select from pg_namespace where nspname = 'other'" })
    expect(rows).toEqual([])
  } finally {
    await db.close()
  }
})

describe.each([
  { server: 'PostgreSQL', url: plain.url, isCitus: false },
  ...(CITUS_URL === undefined ? [] : [{ server: 'Citus', url: CITUS_URL, isCitus: true }]),
])('distributed tables on $server', ({ url, isCitus }) => {
  const db = openDatabase({ url })
  const outbox = createOutbox()
  const webhooks = createWebhooks()
  const startRelay = useRelays(url)
  const startDispatcher = useDispatchers(url)

  beforeAll(async () => {
    await (isCitus ? distributeWithCitus(db, BUCKETS) : distributeWithoutCitus(db, BUCKETS))
    await createApplicationTables(db)
  })
  afterAll(async () => db.close())
  beforeEach(async () => {
    for (const table of ['outbox', 'webhook_outbox', 'webhook_endpoints', 'audit', 'workers', 'sync_jobs'])
      await db.query({ text: `truncate leasehold.${table} cascade` })
    await db.query({ text: 'truncate leasehold.sync_checkpoints, public.payments, public.effects cascade' })
  })

  /** How many events, or deliveries, are in how many buckets. */
  async function spread(table: string): Promise<{ rows: number; buckets: number }> {
    const { rows } = await db.query<{ rows: number; buckets: number }>({
      text: `select count(*)::int as rows, count(distinct bucket)::int as buckets from leasehold.${table}`,
    })
    return rows[0] ?? { rows: 0, buckets: 0 }
  }

  async function bucketOf(key: string): Promise<number> {
    const { rows } = await db.query<{ bucket: number }>({
      text: 'select leasehold.bucket($1::text) as bucket',
      values: [key],
    })
    return rows[0]?.bucket ?? -1
  }

  it('migrating once more changes nothing, and the number of buckets stays', async () => {
    const again = isCitus ? { citus: true } : {}
    expect(await migrate(db, again)).toMatchObject({ applied: [] })
    await expect(migrate(db, { ...again, buckets: 128 })).rejects.toThrow(
      /There are 64 buckets, and the tables are distributed by them: their number cannot be changed to 128/,
    )
  })

  it('an INSERT that names no bucket is refused with what to do, and one that does is taken', async () => {
    const insert = (columns: string, values: string): Promise<unknown> =>
      db.query({ text: `insert into leasehold.outbox (${columns}) values (${values})` })
    await expect(insert('event_type, payload', "'a', '{}'")).rejects.toMatchObject({
      message: 'the row has no bucket, and the table is distributed by it',
      hint: expect.stringContaining('leasehold.bucket(ordering_key)'),
    })
    await insert('bucket, event_type, payload, ordering_key', "leasehold.bucket('k'), 'a', '{}', 'k'")
    await expect(insert('bucket, event_type, payload', "64, 'a', '{}'")).rejects.toThrow(
      'is 64, and must be from 0 to 63',
    )
    await expect(insert('bucket, event_type, payload', "1, '', '{}'")).rejects.toThrow('must have 1 to 255')
    expect((await records(db)).map(({ event_id: id }) => id)).toEqual([
      expect.stringMatching(/^[0-9a-f-]{36}$/),
    ])
  })

  it('events are written by their keys, or spread, and an event id that is given twice once', async () => {
    const given = '01890000-0000-7000-8000-0000000000aa'
    const keys = ['a', 'ä', '鍵', '🔑🗝', "o'neill", 'x'.repeat(1_000)]
    const written = await outbox.enqueue(db, [
      ...keys.map((orderingKey) => ({ type: 'keyed', payload: 1, orderingKey })),
      ...Array.from({ length: 300 }, (_, n) => ({ type: 'spread', payload: n })),
      { type: 'given', payload: 1, eventId: given },
    ])
    expect(written.map(({ id }) => BigInt(id))).toEqual(
      written.map(({ id }) => BigInt(id)).toSorted((a, b) => (a < b ? -1 : 1)),
    )
    const again = await outbox.enqueue(db, { type: 'given', payload: 2, eventId: given })
    expect(again).toEqual({ ...written.at(-1), duplicate: true })
    // An id that the database generated is known as well.
    const { eventId, id } = written[10] ?? { eventId: '', id: '' }
    expect(await outbox.enqueue(db, { type: 'x', payload: 1, eventId })).toEqual({
      eventId,
      id,
      duplicate: true,
    })
    const { rows } = await db.query<{ key: string; bucket: number }>({
      text: "select ordering_key as key, bucket from leasehold.outbox where event_type = 'keyed' order by id",
    })
    for (const { key, bucket } of rows) expect(bucket, key).toBe(await bucketOf(key))
    expect(rows.map(({ key }) => key)).toEqual(keys)
    const { rows: all, buckets } = await spread('outbox')
    expect(all).toBe(307)
    expect(buckets).toBeGreaterThan(50)
    const { rows: sql } = await db.query<{ id: string; same: string }>({
      text: `select leasehold.enqueue('a', '1', 'k', event_id => '${given}')::text as same, leasehold.enqueue('a', '1', 'k')::text as id`,
    })
    expect(sql[0]?.same).toBe(again.id)
    expect(await showEvent(db, sql[0]?.id ?? '')).toMatchObject({ orderingKey: 'k', status: 'PENDING' })
  })

  it('what a transaction enqueues is written exactly if it commits', async () => {
    const failed = db.transaction(async (tx) => {
      await outbox.enqueue(tx, { type: 'a', payload: 1, orderingKey: 'k' }, { serialize: true })
      throw new Error('changed my mind')
    })
    await expect(failed).rejects.toThrow('changed my mind')
    expect(await statuses(db)).toEqual({})
  })

  it('a relay publishes every event once, those of a key in their order, and retries', async () => {
    const events = Array.from({ length: 2_000 }, (_, n) => ({
      type: 'numbered',
      payload: { n },
      ...(n % 3 === 0 ? {} : { orderingKey: `key ${n % 40}` }),
    }))
    await outbox.enqueue(db, events)
    const failed = new Set<number>()
    const publisher = recording(({ payload }) => {
      const { n } = payload as { n: number }
      if (n % 50 !== 0 || failed.has(n)) return undefined
      failed.add(n)
      return retry({ error: 'busy', delayMs: 20 })
    })
    const { events: heard } = await startRelay({ publisher })
    await vi.waitFor(async () => expect(await statuses(db)).toEqual({ PUBLISHED: 2_000 }), POLL)
    expect(heard).toBeDefined()
    expect(publisher.published).toHaveLength(2_000 + failed.size)
    expect(failed.size).toBe(40)
    const byKey = new Map<string, number[]>()
    for (const { orderingKey, payload } of publisher.published) {
      if (orderingKey === null || orderingKey === undefined) continue
      const { n } = payload as { n: number }
      const numbers = byKey.get(orderingKey) ?? []
      // A failed head is published once more before the next one of its key.
      if (numbers.at(-1) !== n) byKey.set(orderingKey, [...numbers, n])
    }
    expect(byKey.size).toBe(40)
    for (const numbers of byKey.values()) expect(numbers).toEqual(numbers.toSorted((a, b) => a - b))
  })

  it('operators list, retry, unblock and replay events on all shards, and retention removes them', async () => {
    await outbox.enqueue(
      db,
      Array.from({ length: 60 }, (_, n) => ({
        type: 'bad',
        payload: { n },
        orderingKey: `key ${n % 20}`,
        maxAttempts: 5,
      })),
    )
    const refusing = recording(() => retry({ error: 'no', delayMs: 3_600_000 }))
    const first = await startRelay({ publisher: refusing, onFailure: 'block' })
    await settled(first.events, 20)
    await first.runtime.stop()
    expect(await statuses(db)).toEqual({ PENDING: 60 })
    const held = await keysHeldUp(db, { limit: 100 })
    expect(held.keys).toHaveLength(20)
    expect(held.keys[0]).toMatchObject({ state: 'blocked', waiting: 2, lastError: 'no' })
    expect(await retryNow(db, { filter: { error: 'no' }, ...WHO })).toMatchObject({ changed: 20 })
    expect(await unblock(db, { orderingKey: 'key 3', ...WHO })).toEqual({ parked: 0, failing: 1 })
    expect(await statuses(db)).toEqual({ PENDING: 59, DEAD: 1 })
    const [dead] = (await listEvents(db, { status: 'DEAD' })).events
    expect(dead).toMatchObject({ orderingKey: 'key 3', lastError: 'no (given up by ada: a test)' })

    const publisher = recording()
    const second = await startRelay({ publisher })
    await vi.waitFor(async () => expect(await statuses(db)).toEqual({ PUBLISHED: 59, DEAD: 1 }), POLL)
    await second.runtime.stop()
    expect(await countByStatus(db)).toMatchObject({
      PUBLISHED: { count: 59 },
      DEAD: { count: 1 },
      PENDING: { count: 0 },
    })
    const pages = await listEvents(db, {}, { limit: 50 })
    expect(pages.events).toHaveLength(50)
    expect((await listEvents(db, {}, { limit: 50, before: pages.next ?? '' })).events).toHaveLength(10)
    expect(
      await replay(db, { filter: { status: ['DEAD', 'PUBLISHED'] }, rate: 1_000, ...WHO }),
    ).toMatchObject({
      changed: 60,
      counts: { published: 59, dead: 1 },
    })
    await startRelay({ publisher: recording() })
    await vi.waitFor(async () => expect(await statuses(db)).toEqual({ PUBLISHED: 60 }), POLL)
    expect(await applyRetention(db, { publishedMs: 3_600_000 })).toMatchObject({ published: 0 })
    expect(await applyRetention(db, { publishedMs: 0, pauseMs: 0 })).toMatchObject({ published: 60 })
    expect((await spread('outbox')).rows).toBe(0)
  })

  it('webhooks are delivered once to each endpoint, in the order of a key, and operators see and change them', async () => {
    const shop = await receivers()
    const ordered = await receivers()
    await addEndpoint(db, shop.url)
    const managed = endpoints(db, { secretKey: SECRET_KEY, network: { allow: ['127.0.0.0/8'] } })
    const { endpoint } = await managed.create({ url: ordered.url, ordered: true }, WHO)
    const sent = await webhooks.send(
      db,
      Array.from({ length: 200 }, (_, n) => ({
        type: 'counted',
        payload: { n },
        orderingKey: `key ${n % 10}`,
      })),
    )
    expect(sent.map(({ deliveries }) => deliveries)).toEqual(sent.map(() => 2))
    const [again] = await webhooks.send(db, [
      { type: 'counted', payload: 0, eventId: sent[0]?.eventId, orderingKey: 'key 0' },
    ])
    expect(again).toMatchObject({ deliveries: 0 })
    expect(await webhooks.send(db, { type: 'counted', payload: 0, tenant: 'nobody' })).toMatchObject({
      deliveries: 0,
    })
    const { rows } = await db.query({
      text: `select leasehold.send_webhook('counted', '{"n": 200}', ordering_key => 'key 0') as sent`,
    })
    expect(rows).toEqual([{ sent: 2 }])
    expect((await spread('webhook_outbox')).rows).toBe(402)

    const failing = new Set<string>()
    shop.answer(({ headers }) => {
      const id = String(headers['webhook-id'])
      if (failing.size >= 5 || failing.has(id)) return 204
      failing.add(id)
      return 500
    })
    const { runtime } = await startDispatcher({
      schedule: [50, 50, 50],
      circuitBreaker: { failureThreshold: 1_000 },
    })
    await vi.waitFor(async () => expect(await deliveryStatuses(db)).toEqual({ delivered: 402 }), POLL)
    await runtime.stop()
    expect(failing.size).toBe(5)
    expect(shop.received).toHaveLength(201 + 5)
    const byKey = new Map<number, number[]>()
    for (const { body } of ordered.received) {
      const { n } = (JSON.parse(body) as { data: { n: number } }).data
      byKey.set(n % 10, [...(byKey.get(n % 10) ?? []), n])
    }
    for (const numbers of byKey.values()) expect(numbers).toEqual(numbers.toSorted((a, b) => a - b))
    expect(ordered.received).toHaveLength(201)

    expect(await countDeliveries(db)).toMatchObject({ delivered: { count: 402 }, pending: { count: 0 } })
    const page = await listDeliveries(db, { endpoint: endpoint.id }, { limit: 10 })
    expect(page.deliveries).toHaveLength(10)
    expect(await showDelivery(db, page.deliveries[0]?.id ?? '')).toMatchObject({
      endpointUrl: ordered.url,
      history: [{}],
    })
    const filter = { endpoint: endpoint.id, status: 'delivered' } as const
    expect(await replayDeliveries(db, { filter, rate: 10_000, ...WHO })).toMatchObject({ changed: 201 })
    expect((await summariseEndpoints(db)).endpoints.find(({ id }) => id === endpoint.id)).toMatchObject({
      pending: 201,
    })
    await retryDeliveries(db, { filter: { endpoint: endpoint.id }, ...WHO })
    expect(await cancel(db, { filter: { endpoint: endpoint.id }, ...WHO })).toMatchObject({ changed: 201 })
    expect(await deliveryStatuses(db)).toEqual({ delivered: 201, failed: 201 })
    expect(
      await replayDeliveries(db, { filter: { status: 'failed', failedSince: new Date(0) }, ...WHO }),
    ).toMatchObject({ changed: 201 })
    await managed.delete(endpoint.id, WHO)
    expect(await maintain(db, {})).toMatchObject({ endpointDeleted: 201 })
    expect(await applyWebhookRetention(db, { deliveredMs: 0, failedMs: 0, pauseMs: 0 })).toEqual({
      delivered: 201,
      failed: 201,
    })
  })

  it('endpoints are created, changed, rotated, disabled and listed', async () => {
    const managed = endpoints(db, { secretKey: SECRET_KEY, network: { allow: ['127.0.0.0/8'] } })
    const { endpoint } = await managed.create({ url: 'http://127.0.0.1:9/', headers: { 'x-a': '1' } }, WHO)
    const { id } = endpoint
    expect(await managed.update(id, { concurrency: 3 }, WHO)).toMatchObject({ concurrency: 3 })
    expect((await managed.rotateSecret(id, WHO)).endpoint.previousSecretUntil).not.toBeNull()
    expect((await managed.rotateSecret(id, WHO, { keepOldForMs: 0 })).endpoint.previousSecretUntil).toBeNull()
    expect(await managed.disable(id, WHO)).toMatchObject({ enabled: false, disabledReason: 'a test' })
    expect(await managed.enable(id, WHO)).toMatchObject({ enabled: true, disabledAt: null })
    expect(await managed.reencryptSecrets(WHO)).toBeDefined()
    expect(await managed.get(id)).toMatchObject({ headers: { 'x-a': '***' } })
    expect((await managed.list()).endpoints).toHaveLength(1)
    expect(await maintain(db, {})).toMatchObject({ endpointDeleted: 0 })
  })

  it('an endpoint that fails opens its circuit, and closes it when it is back', async () => {
    const shop = await receivers(() => 500)
    await addEndpoint(db, shop.url)
    await webhooks.send(
      db,
      Array.from({ length: 10 }, (_, n) => ({ type: 'counted', payload: { n } })),
    )
    await startDispatcher({
      schedule: Array.from({ length: 20 }, () => 50),
      circuitBreaker: { failureThreshold: 2, openMs: 100, maxOpenMs: 200 },
    })
    await vi.waitFor(async () => {
      const { rows } = await db.query({
        text: 'select failing_since is not null as open from leasehold.webhook_endpoints',
      })
      expect(rows).toEqual([{ open: true }])
    }, POLL)
    shop.answer(() => 204)
    await vi.waitFor(async () => expect(await deliveryStatuses(db)).toEqual({ delivered: 10 }), POLL)
  })

  it('all four applications: what a killed process held is done once by another one', async () => {
    const rows = 12
    const settings = {
      leaseMs: 4_000,
      heartbeatMs: 400,
      reaperIntervalMs: 300,
      shutdownTimeoutMs: 3_000,
      pollMs: 200,
    }
    const shop = await receivers()
    const held = hold(shop)
    await addEndpoint(db, shop.url)
    await produce(db, rows)
    const victim = startApplications(processes, { databaseUrl: url, settings, hold: true })
    onTestFinished(async () => void (await victim.kill('SIGKILL')))
    const victimId = String((await victim.heard('up'))['id'])
    for (const application of ['outbox', 'sync', 'reconcile'])
      await victim.heard('holding', (line) => line['application'] === application)
    await vi.waitFor(async () => {
      const { webhooks: leased } = await leasedBy(db, victimId)
      expect(shop.received).toHaveLength(Math.max(1, leased))
    }, POLL)
    await victim.kill('SIGKILL')
    const leased = await leasedBy(db, victimId)
    held.letGo()
    const cut = shop.received.length
    const survivor = startApplications(processes, { databaseUrl: url, settings, tell: ['trouble'] })
    onTestFinished(async () => void (await survivor.kill('SIGKILL')))
    const all = Object.fromEntries(APPLICATIONS.map((application) => [application, rows]))
    await vi.waitFor(async () => expect(await finished(db)).toEqual(all), POLL)
    expect(await survivor.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(survivor.all('trouble')).toEqual([])
    const numbers = Array.from({ length: rows }, (_, i) => i + 1)
    for (const application of APPLICATIONS) expect(leased[application], application).toBeGreaterThan(0)
    for (const application of ['outbox', 'sync', 'reconcile'] as const)
      expect(await effects(db, application), application).toEqual(numbers)
    expect(shop.received.slice(cut)).toHaveLength(rows)
  })

  it('leasehold status shows all shards', async () => {
    await outbox.enqueue(
      db,
      Array.from({ length: 30 }, (_, n) => ({ type: 'a', payload: n })),
    )
    const shop = await receivers()
    await addEndpoint(db, shop.url)
    await webhooks.send(db, { type: 'a', payload: 1 })
    const status = processes.spawnNode('bin/leasehold.cjs', ['status', '--json'], {
      env: { DATABASE_URL: url },
    })
    expect(await status.exited, status.output().stderr).toEqual({ code: 0, signal: null })
    expect(JSON.parse(status.output().stdout)).toMatchObject({
      outbox: {
        counts: { pending: { count: 30, exact: true }, published: { count: 0 } },
        oldestPending: { type: 'a' },
      },
      webhooks: { counts: { pending: { count: 1 } }, endpoints: [{ pending: 1 }] },
      sync: { counts: {} },
    })
    const written = processes.spawnNode('bin/leasehold.cjs', ['outbox', 'enqueue', 'b', '{}', '--key', 'k'], {
      env: { DATABASE_URL: url },
    })
    expect(await written.exited, written.output().stderr).toEqual({ code: 0, signal: null })
    expect(await statuses(db)).toEqual({ PENDING: 31 })
  })

  it.runIf(isCitus)(
    'every claim, settlement, renewal, release and reap is one task on one node',
    async () => {
      for (const table of [outboxTable(), webhookTable()]) {
        const tasks = await tasksOf(db, table)
        for (const [purpose, counts] of tasks)
          expect(purpose.endsWith(' buckets') ? counts.length : counts, `${table.name}: ${purpose}`).toEqual(
            purpose.endsWith(' buckets') ? 1 : [1],
          )
      }
    },
  )
})

async function tasksOf(
  db: Database,
  table: ReturnType<typeof outboxTable> | ReturnType<typeof webhookTable>,
) {
  const inspection = await inspectTable(db, table)
  if (inspection.found !== 'table') throw new Error(`${table.name} is missing`)
  const samples: Readonly<Record<string, unknown>> = {
    bucket: 7,
    owner: 'somebody',
    ownedBy: 'somebody',
    leaseMs: 1_000,
    limit: 10,
    steps: 10,
    rows: 10,
    overlapMs: 0,
    suspects: 1,
    bytes: 1_000_000,
    oldestFirst: false,
    delayMs: 0,
    args: '{}',
    tokens: [],
    id1: [],
    excluded1: [],
    freed1: [],
    cursor1: '-infinity',
    cursor2: '0',
    groups: ['01890000-0000-7000-8000-0000000000aa'],
    rooms: [5],
    groupCursors: [''],
    backoffMs: [1_000],
  }
  const tasks = new Map<string, number[]>()
  for (const { purpose, text, parameters } of allStatements(leaseStatements(table, inspection.shape))) {
    const { rows } = await db.query<{ 'QUERY PLAN': [{ Plan: Parameters<typeof taskCounts>[0] }] }>({
      text: `explain (format json) ${text}`,
      values: parameters.map((name) => samples[name] ?? null),
    })
    const plan = rows[0]?.['QUERY PLAN'][0].Plan
    tasks.set(purpose, plan === undefined ? [] : taskCounts(plan))
  }
  return tasks
}
