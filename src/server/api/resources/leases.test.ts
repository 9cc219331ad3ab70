import { beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useApi } from '../../../../test/support/api.ts'
import { ordered, payments, tasks } from '../../../../test/support/lease-tables.ts'
import {
  clientAddress,
  type RouteCase,
  testAllHaveCases,
  testRoute,
} from '../../../../test/support/route-cases.ts'
import { recording } from '../../../../test/support/running-relay.ts'
import { collect, door } from '../../../../test/support/running-worker.ts'
import { useRuntimes } from '../../../../test/support/runtimes.ts'
import { A_TOKEN } from '../../../../test/support/tokens.ts'
import { makeEndpoint } from '../../../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../../../test/support/webhook-rows.ts'
import { leaseTable } from '../../../lease/declaration.ts'
import { openLeaseStore } from '../../../lease/store.ts'
import { enqueue } from '../../../outbox/index.ts'
import { relay } from '../../../outbox/relay.ts'
import { outboxTable } from '../../../outbox/table.ts'
import { reconciler } from '../../../reconcile/index.ts'
import { changeSettings, Events } from '../../../worker/index.ts'
import { LEASES } from './leases.ts'

const hidden = leaseTable({ table: 'private.jobs', claimable: 'true', outcomes: {} })
const api = useApi({ clientAddress, tables: [payments.table, tasks.table, ordered.table, hidden] })
const { db, send, url } = api
const startRuntime = useRuntimes(url)

beforeAll(async () => {
  await db.query({ text: `${payments.ddl}; ${tasks.ddl}; ${ordered.ddl}` })
  await db.query({
    text: 'create schema private; create table private.jobs (id int primary key, lease_owner text, lease_until timestamptz, lease_token bigint, attempts int, expiries int, last_error text)',
  })
  await db.query({
    text: 'grant usage on schema public to leasehold_reader; grant select on public.payments, public.tasks, public.ordered_jobs to leasehold_reader, leasehold_operator',
  })
})

beforeEach(async () => {
  await db.query({
    text: `truncate leasehold.outbox, leasehold.webhook_outbox, leasehold.workers, leasehold.settings, public.payments, public.tasks,
  public.ordered_jobs restart identity`,
  })
})

const BOUND = { timeout: 20_000, interval: 50 }

const other = { name: 'ordered', table: ordered.table, handle: async () => undefined }

async function claim(table: typeof payments.table, owner: string, count: number, leaseMs: number) {
  const store = await openLeaseStore(db, table, { owner })
  const { claimed } = await store.claim({ limit: count, leaseMs })
  expect(claimed).toHaveLength(count)
  return claimed.map(({ lease }) => lease)
}

const CASES: readonly RouteCase[] = [
  {
    route: 'GET /leases',
    happy: async () => ({ path: '/leases', answer: { items: [], more: false, now: expect.any(String) } }),
    invalid: async () => [
      { path: '/leases?table=public.nothing', field: 'query.table' },
      { path: '/leases?limit=0', field: 'query.limit' },
      { path: '/leases?owner=', field: 'query.owner' },
      { path: '/leases?cursor=x', field: 'query' },
    ],
  },
  {
    route: 'GET /tables',
    happy: async () => ({ path: '/tables' }),
    invalid: async () => [{ path: '/tables?x=1', field: 'query' }],
  },
  {
    route: 'GET /reconcilers',
    happy: async () => ({ path: '/reconcilers', answer: { items: [] } }),
    invalid: async () => [{ path: '/reconcilers?x=1', field: 'query' }],
  },
]

for (const each of CASES) testRoute(api, each, async () => Promise.resolve(null))
testAllHaveCases(LEASES, CASES)

describe('GET /leases', () => {
  it('has the leases of all tables with owner, token and end, those that end first at the top, and the clock of the database', async () => {
    await enqueue(db, [
      { type: 'a', payload: 1 },
      { type: 'b', payload: 2 },
    ])
    await db.query({ text: payments.insert, values: [1] })
    await db.query({ text: tasks.insert, values: [1] })
    const events = await claim(outboxTable(), 'relay', 2, 20_000)
    const [payment] = await claim(payments.table, 'reconciler', 1, 10_000)
    const [task] = await claim(tasks.table, 'tasker', 1, 60_000)
    const [delivery] = await makeDeliveries(db, await makeEndpoint(db), 1, { owner: 'dispatcher' })
    const { body } = await send('GET', '/leases', { key: 'read' })
    expect(body.items).toMatchObject([
      {
        table: 'public.payments',
        id: payment?.id,
        owner: 'reconciler',
        token: A_TOKEN,
        since: null,
        bucket: null,
      },
      ...events.map(({ id }) => ({
        table: 'leasehold.outbox',
        id,
        owner: 'relay',
        token: A_TOKEN,
        since: expect.any(String),
        bucket: 0,
      })),
      { table: 'public.tasks', id: task?.id, owner: 'tasker', token: task?.token.toString() },
      { table: 'leasehold.webhook_outbox', id: delivery, owner: 'dispatcher', token: '1' },
    ])
    for (const { until, leftMs } of body.items)
      expect(Math.abs(Date.parse(until) - Date.parse(body.now) - leftMs)).toBeLessThan(5_000)
    expect(body.items[0].leftMs).toBeLessThanOrEqual(10_000)
    expect(body.items[0].until).toBe(payment?.until.toISOString())
  })

  it('is limited by owner, by table and in number', async () => {
    await db.query({ text: payments.insert, values: [3] })
    await claim(payments.table, 'a', 1, 10_000)
    await claim(payments.table, 'b', 2, 20_000)
    await db.query({ text: tasks.insert, values: [1] })
    await claim(tasks.table, 'a', 1, 30_000)
    const tablesOf = async (query: string): Promise<unknown> => {
      const { body } = await send('GET', `/leases?${query}`)
      return [
        body.items.map((item: { table: string; owner: string }) => `${item.owner} ${item.table}`),
        body.more,
      ]
    }
    expect(await tablesOf('owner=a')).toEqual([['a public.payments', 'a public.tasks'], false])
    expect(await tablesOf('table=public.tasks')).toEqual([['a public.tasks'], false])
    expect(await tablesOf('limit=2')).toEqual([['a public.payments', 'b public.payments'], true])
    expect(await tablesOf('limit=1&table=public.payments')).toEqual([['a public.payments'], true])
    expect(await tablesOf('owner=nobody')).toEqual([[], false])
  })

  it('has leases that have expired and that nobody has taken back', async () => {
    await db.query({ text: payments.insert, values: [1] })
    await claim(payments.table, 'gone', 1, 10_000)
    await db.query({ text: `update public.payments set lease_until = now() - interval '1 minute'` })
    const { body } = await send('GET', '/leases')
    expect(body.items).toMatchObject([{ owner: 'gone' }])
    expect(body.items[0].leftMs).toBeLessThanOrEqual(-60_000)
  })

  it('says of each row in flight what its owner is, about how often the lease was renewed, and that a renewal is late', async () => {
    const settings = {
      leaseMs: 30_000,
      heartbeatMs: 100,
      reaperIntervalMs: 5_000,
      concurrency: 1,
      prefetch: 0,
    }
    const held = door()
    onTestFinished(() => held.open())
    const { runtime, events } = await startRuntime([
      relay({ publisher: recording(async () => held.opened), retention: false, settings }),
    ])
    const begun = events.next('claimed')
    const renewed = events.next('renewed', ({ count }) => count > 0)
    await enqueue(db, { type: 'a', payload: 1 })
    await begun
    await renewed
    const item = async (id: string): Promise<Record<string, unknown>> => {
      const { body } = await send('GET', '/leases')
      return body.items.find((each: { id: string }) => each.id === id)
    }
    await expect
      .poll(async () => item('1'), BOUND)
      .toMatchObject({
        owner: runtime.id,
        ownerState: 'alive',
        token: A_TOKEN,
        leaseMs: 30_000,
        heartbeatMs: 100,
        renewals: expect.toSatisfy((renewals: number) => renewals > 2),
        renewedAt: expect.any(String),
        isLate: false,
      })
    // The answer to a claim that was lost on the way: the process does not know of the row, and does not renew it.
    await enqueue(db, { type: 'b', payload: 2 })
    await claim(outboxTable(), runtime.id, 1, 30_000)
    await expect
      .poll(async () => item('2'), BOUND)
      .toMatchObject({ owner: runtime.id, ownerState: 'alive', renewals: 0, renewedAt: null, isLate: true })
    held.open()
  })

  it('knows neither renewals nor whether they are late where the owner is not in the registry', async () => {
    await enqueue(db, { type: 'a', payload: 1 })
    await claim(outboxTable(), 'somebody', 1, 20_000)
    const { body } = await send('GET', '/leases')
    expect(body.items).toMatchObject([
      {
        owner: 'somebody',
        ownerState: 'unknown',
        leaseMs: null,
        heartbeatMs: null,
        renewedAt: null,
        renewals: null,
        isLate: null,
      },
    ])
  })

  it('names a table that cannot be read with the GRANT that is missing, which helps, and has the others', async () => {
    await db.query({ text: payments.insert, values: [1] })
    await claim(payments.table, 'a', 1, 10_000)
    const { body } = await send('GET', '/leases', { key: 'read' })
    expect(body.items).toMatchObject([{ owner: 'a' }])
    expect(body.unreadable).toMatchObject([
      { table: 'private.jobs', problem: expect.stringContaining('permission denied') },
    ])
    const [, grants = ''] = body.unreadable[0].problem.split('Run: ')
    await db.query({ text: grants })
    expect((await send('GET', '/leases', { key: 'read' })).body.unreadable).toEqual([])
    await db.query({ text: 'revoke all on schema private from leasehold_reader, leasehold_operator' })
  })

  it('a table that does not exist, or not any more, does not keep the others from being shown', async () => {
    await db.query({ text: 'alter table public.tasks rename to elsewhere' })
    const { body, status } = await send('GET', '/leases', { key: 'read' })
    const tables = await send('GET', '/tables', { key: 'read' })
    await db.query({ text: 'alter table public.elsewhere rename to tasks' })
    expect(status).toBe(200)
    const unreadable = { table: 'public.tasks', problem: 'public.tasks is not a table' }
    expect(body.unreadable).toContainEqual(unreadable)
    expect(tables.body.items).toContainEqual(expect.objectContaining(unreadable))
  })
})

describe('GET /tables', () => {
  it('has the backlog of each table that was given, what is in flight, and who processes and reaps it', async () => {
    await db.query({ text: payments.insert, values: [3] })
    await claim(payments.table, 'another', 1, 60_000)
    await startRuntime([{ ...other, settings: { paused: true } }], { id: 'process 1' })
    await db.query({ text: ordered.insert, values: [2] })
    const tables = async () => (await send('GET', '/tables', { key: 'read' })).body.items
    // The reaper counts once it has run.
    await expect.poll(tables).toMatchObject([
      { table: 'public.payments', pending: 2, inFlight: 1, servedBy: [], reapedBy: [], problem: null },
      { table: 'public.tasks', pending: 0, inFlight: 0, oldestPendingMs: null },
      { table: 'public.ordered_jobs', pending: 2, servedBy: ['process 1'], reapedBy: ['process 1'] },
      { table: 'private.jobs', pending: null, problem: expect.stringContaining('permission denied') },
    ])
    expect((await tables())[0].oldestPendingMs).toBeGreaterThanOrEqual(0)
  })
})

it('a row is explained by the workers of its own table, not by those of others', async () => {
  const { rows } = await db.query<{ k1: string }>({ text: payments.insert, values: [1] })
  await startRuntime([{ ...other, settings: { paused: true } }])
  const explained = await send('GET', `/tables/public.payments/rows/${rows[0]?.k1}/explain`, { key: 'read' })
  expect(explained.body.reasons.map(({ code }: { code: string }) => code)).toContain('noWorker')
})

describe('GET /reconcilers', () => {
  it('has the reconcilers alone, their tables, the processes that run them, and their settings', async () => {
    const declared = reconciler({
      name: 'payments',
      table: payments.table,
      transitions: { pending: ['confirmed'], confirmed: [] },
      observe: async () => undefined,
      settings: { paused: true },
    })
    await startRuntime([declared, other], { id: 'process 1' })
    await changeSettings(db, 'leasehold', 'payments', { concurrency: 3 }, 'somebody')
    const { body } = await send('GET', '/reconcilers', { key: 'read' })
    expect(body.items).toMatchObject([
      {
        name: 'payments',
        tables: ['public.payments'],
        processes: [{ worker: 'process 1', state: 'alive', declared: { pollMs: 5_000, paused: true } }],
        stored: { value: { concurrency: 3 }, changedBy: 'somebody' },
      },
    ])
    const { body: workers } = await send('GET', '/workers')
    expect(workers.items[0].serves).toEqual({
      payments: { table: 'public.payments', role: 'reconcile' },
      ordered: { table: 'public.ordered_jobs', role: 'ordered' },
    })
  })

  it('has what their processes have done: cycles, observations, transitions, and the last error', async () => {
    const events = new Events()
    const states = new Map<string, number>()
    const over = collect(events, 'settled', (all) => {
      for (const { outcome, ids } of all.slice(-1))
        states.set(outcome, (states.get(outcome) ?? 0) + ids.length)
      return [...states.values()].reduce((sum, count) => sum + count, 0) === 4
    })
    await db.query({ text: payments.insert, values: [4] })
    let observed = 0
    const declared = reconciler({
      name: 'payments',
      table: payments.table,
      transitions: { pending: ['confirmed'], confirmed: [] },
      everyMs: 3_600_000,
      observe: async () => {
        observed += 1
        if (observed === 1) throw new Error('the bank is closed')
        return observed === 2 ? undefined : 'confirmed'
      },
    })
    const { runtime } = await startRuntime([declared], { events })
    await over
    await runtime.stop()
    const { body } = await send('GET', '/reconcilers', { key: 'read' })
    expect(body.items).toMatchObject([
      {
        name: 'payments',
        counters: {
          cycles: expect.any(Number),
          claimed: 4,
          scanned: 4,
          transitions: { 'pending->confirmed': 2 },
          skipped: 0,
          errors: 1,
          lastError: { error: expect.stringContaining('the bank is closed') },
        },
      },
    ])
    expect(body.items[0].counters.cycles).toBeGreaterThan(0)
  })
})
