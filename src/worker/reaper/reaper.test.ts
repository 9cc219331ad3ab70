import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { events as outbox, specimens } from '../../../test/support/lease-tables.ts'
import { startProxy } from '../../../test/support/proxy.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { leaseTable, openLeaseStore, tableName, type LeaseStore, type LeaseTable } from '../../lease/index.ts'
import { openDatabase, type Database } from '../../postgres/database.ts'
import { Events, type EventOf } from '../events.ts'
import type { Loop } from '../loop.ts'
import { createReaper, type ReaperOptions } from './reaper.ts'
import { describeWorker, listWorkers, presence } from '../registry/registry.ts'
import { A_TOKEN } from '../../../test/support/tokens.ts'

useQuietProcess()
const database = useDatabase()
const startRuntimeOf = useRuntimes(database.url)
let db: Database

const tasks = specimens.find(({ name }) => name === 'no token column')?.table
if (tasks === undefined) throw new Error('the specimen without a token column is gone')

/** At the third expiry a row is dead. */
const poison = leaseTable({
  table: 'public.poison',
  id: 'id',
  lease: { owner: 'owner', until: 'until', token: 'token' },
  claimable: "status = 'PENDING'",
  order: ['id'],
  onExpiry: 'reap',
  leased: "status = 'CLAIMED'",
  attempts: { max: 3, error: false },
  writes: { claim: { status: "'CLAIMED'" }, release: { status: "'PENDING'" } },
  outcomes: {
    done: { set: { status: "'DONE'" } },
    retry: { set: { status: "'PENDING'", attempts: 'attempts + 1' } },
    dead: { set: { status: "'DEAD'", attempts: 'attempts + 1' } },
  },
})

beforeAll(async () => {
  db = openDatabase({ url: database.url, maxConnections: 20 })
  for (const { ddl, table } of specimens)
    if ([outbox.table, tasks].includes(table)) await db.query({ text: ddl })
  await db.query({
    text: `create table public.poison (
        id int generated always as identity primary key, status text not null default 'PENDING',
        attempts int not null default 0, expiries int not null default 0, owner text, until timestamptz, token bigint not null default 0);
      create index on public.poison (id) where status = 'PENDING';
      create index on public.poison (id) where status = 'PENDING' and expiries >= 2;
      create index on public.poison (id) where status = 'CLAIMED'`,
  })
})

afterAll(async () => {
  await db.close()
})

beforeEach(async () => {
  await db.query({ text: 'truncate public.events, public.tasks, public.poison, leasehold.workers' })
})

const started: Loop[] = []

afterEach(async () => {
  await Promise.all(started.splice(0).map(async (loop) => loop.stop()))
})

interface Running {
  readonly events: Events
  readonly reaper: Loop
  readonly reaped: EventOf<'reaped'>[]
  readonly failed: EventOf<'reaperFailed'>[]
}

/** Started by the test, when it listens. */
function reaperOver(stores: readonly LeaseStore[], options: Partial<ReaperOptions> = {}): Running {
  const events = new Events()
  const reaped: EventOf<'reaped'>[] = []
  const failed: EventOf<'reaperFailed'>[] = []
  events.on('reaped', (event) => reaped.push(event))
  events.on('reaperFailed', (event) => failed.push(event))
  const reaper = createReaper({
    db,
    schema: 'leasehold',
    worker: 'reaper',
    stores,
    events,
    settings: () => ({ reaperIntervalMs: 600_000 }),
    eviction: false,
    ...options,
  })
  started.push(reaper)
  return { events, reaper, reaped, failed }
}

async function run({ events, reaper }: Running): Promise<EventOf<'reaperRan'>> {
  const ran = events.next('reaperRan')
  reaper.start()
  return ran
}

async function insert(table: LeaseTable, count: number): Promise<void> {
  await db.query({
    text: `insert into ${tableName(table)} select from generate_series(1, ${count})`,
  })
}

/** Rows that this owner holds, for another ten minutes. */
async function held(table: LeaseTable, owner: string, count: number): Promise<LeaseStore> {
  await insert(table, count)
  const store = await openLeaseStore(db, table, { owner })
  expect((await store.claim({ limit: count, leaseMs: 600_000 })).claimed).toHaveLength(count)
  return store
}

async function expire(table: LeaseTable): Promise<void> {
  const { until } = table.lease
  await db.query({
    text: `update ${tableName(table)} set ${until} = now() - interval '5 seconds' where ${until} is not null`,
  })
}

async function rowsOf(table: LeaseTable): Promise<Record<string, unknown>[]> {
  return (await db.query({ text: `table ${tableName(table)}` })).rows
}

describe('expired leases', () => {
  it('RULE-020-021, D4: are taken back in every table at the start, and each is reported with its owner', async () => {
    const stores = [await held(outbox.table, 'gone', 3), await held(tasks, 'gone', 2)]
    await held(outbox.table, 'alive', 1)
    await db.query({
      text: `update public.events set locked_until = now() - interval '5 seconds' where claimed_by = 'gone'`,
    })
    await expire(tasks)
    const running = reaperOver(stores)
    expect(await run(running)).toMatchObject({ worker: 'reaper', reaped: 5 })
    expect(running.reaped).toHaveLength(5)
    for (const event of running.reaped) {
      expect(event).toMatchObject({ worker: 'reaper', owner: 'gone', evicted: false, id: expect.any(String) })
      expect(event.staleMs).toBeGreaterThanOrEqual(5_000)
      expect(event.token).toBeGreaterThan(0n)
    }
    expect(running.reaped.filter(({ table }) => table === 'public.events')).toHaveLength(3)
    const rows = await rowsOf(outbox.table)
    const taken = {
      status: 'PENDING',
      claimed_by: null,
      locked_until: null,
      attempts: 1,
      lock_token: A_TOKEN,
    }
    expect(rows.filter((row) => row['claimed_by'] === null)).toMatchObject([taken, taken, taken])
    expect(rows.filter((row) => row['claimed_by'] === 'alive')).toMatchObject([
      { status: 'CLAIMED', attempts: 0 },
    ])
    expect(await rowsOf(tasks)).toMatchObject([{ locked_by: null }, { locked_by: null }])
  })

  it('of a table that is left to other processes are left alone, until it is not any more', async () => {
    const stores = [await held(outbox.table, 'gone', 2), await held(tasks, 'gone', 3)]
    for (const table of [outbox.table, tasks]) await expire(table)
    const left = new Set(['public.events'])
    const running = reaperOver(stores, { isLeftToOthers: (table) => left.has(table) })
    expect(await run(running)).toMatchObject({ reaped: 3 })
    await running.reaper.stop()
    left.clear()
    const again = reaperOver(stores, { isLeftToOthers: (table) => left.has(table) })
    expect(await run(again)).toMatchObject({ reaped: 2 })
  })

  it('D10: a table whose statements wait for a lock shows no outage, in which the rows of other tables would wait too', async () => {
    const impatient = openDatabase({ url: database.url, queryTimeoutMs: 300 })
    onTestFinished(async () => impatient.close())
    const outages: string[] = []
    const owners = {
      find: async () => Promise.resolve({ owners: [], graceMs: 0 }),
      lost: () => outages.push('lost'),
    }
    const running = reaperOver([await openLeaseStore(impatient, tasks, { owner: 'reaper' })], { owners })
    await db.transaction(async (tx) => {
      await tx.query({ text: `lock table ${tableName(tasks)}` })
      const failed = running.events.next('reaperFailed')
      running.reaper.start()
      expect(await failed).toMatchObject({ table: 'public.tasks', error: { code: 'QUERY_TIMEOUT' } })
    })
    expect(outages).toEqual([])
  })

  it('of tables that a process was told to leave to others are left alone by it, and so is their maintenance', async () => {
    await held(outbox.table, 'gone', 1)
    await expire(outbox.table)
    const run = async (): Promise<Record<string, number>> => Promise.resolve({})
    const maintenance = { everyMs: 5, run }
    const { runtime, events } = await startRuntimeOf([], {
      reapTables: [
        { table: outbox.table, maintenance },
        { table: tasks, maintenance },
      ],
      settings: { reaperIntervalMs: 25 },
      eviction: false,
    })
    await events.next('reaped')
    runtime.reapExcept(['public.events'])
    const ran = async (count: number): Promise<string[]> => {
      const seen: string[] = []
      const off = events.on('maintenanceRan', ({ table }) => seen.push(table))
      for (let n = 0; n < count; n += 1) await events.next('reaperRan')
      off()
      return [...new Set(seen)].toSorted()
    }
    // What was running when it was told ends with the next run at the latest.
    await ran(2)
    const reaped: string[] = []
    events.on('reaped', ({ table }) => reaped.push(table))
    await held(outbox.table, 'gone', 1)
    await expire(outbox.table)
    expect(await ran(3)).toEqual(['public.tasks'])
    expect(reaped).toEqual([])
    runtime.reapExcept([])
    await events.next('reaped')
    expect(await ran(3)).toEqual(['public.events', 'public.tasks'])
  })

  it('D4, D10: make a row dead at its last attempt, and each expiry is counted', async () => {
    const store = await held(poison, 'victim', 1)
    for (const [attempts, status] of [
      [1, 'PENDING'],
      [2, 'PENDING'],
      [3, 'DEAD'],
    ] as const) {
      await expire(poison)
      const running = reaperOver([store])
      expect(await run(running)).toMatchObject({ reaped: 1 })
      expect(running.reaped).toMatchObject([{ outcome: status === 'DEAD' ? 'dead' : 'retry' }])
      expect(await rowsOf(poison)).toMatchObject([
        { attempts, expiries: attempts, status, owner: null, until: null },
      ])
      const { claimed } = await store.claim({ limit: 1, leaseMs: 600_000 })
      expect(claimed).toHaveLength(status === 'DEAD' ? 0 : 1)
    }
  })

  it('are taken back in bounded batches, until one is less than half full', async () => {
    const store = await held(outbox.table, 'gone', 24)
    await expire(outbox.table)
    const batches: number[] = []
    const counted: LeaseStore = {
      ...store,
      async reap(request) {
        const rows = await store.reap(request)
        batches.push(rows.length)
        return rows
      },
    }
    const running = reaperOver([counted], { settings: () => ({ reaperIntervalMs: 600_000, batch: 10 }) })
    expect(await run(running)).toMatchObject({ reaped: 24 })
    expect(batches).toEqual([10, 10, 4])
  })

  it('are taken back once each by three reapers at the same time', async () => {
    const store = await held(outbox.table, 'gone', 300)
    await expire(outbox.table)
    const all = Array.from({ length: 3 }, () =>
      reaperOver([store], { settings: () => ({ reaperIntervalMs: 1, batch: 20 }) }),
    )
    const runs = await Promise.all(all.map(async (running) => run(running)))
    expect(runs).toHaveLength(3)
    await run(reaperOver([store]))
    await Promise.all(all.map(async ({ reaper }) => reaper.stop()))
    const ids = all.flatMap(({ reaped }) => reaped.map(({ id }) => id))
    expect(new Set(ids).size).toBe(ids.length)
    const rows = await rowsOf(outbox.table)
    expect(rows).toHaveLength(300)
    for (const row of rows) expect(row).toMatchObject({ status: 'PENDING', attempts: 1 })
  })
})

describe('the loop', () => {
  it('RULE-020-022, RULE-020-023: repeats at the current interval, and reports each run', async () => {
    const reaped: number[] = []
    const intervals = [1, 2, 600_000]
    const { events, reaper } = reaperOver([await held(outbox.table, 'gone', 2)], {
      settings: () => ({ reaperIntervalMs: intervals[reaped.length - 1] ?? 600_000 }),
    })
    const third = events.next('reaperRan', (event) => reaped.push(event.reaped) === 3)
    await expire(outbox.table)
    reaper.start()
    expect(await third).toMatchObject({ reaped: 0, durationMs: expect.any(Number) })
    expect(reaped).toEqual([2, 0, 0])
  })

  it('RULE-020-022: each table is reaped at its own interval', async () => {
    const stores = [await held(poison, 'gone', 1), await held(outbox.table, 'gone', 1)]
    const reaped: string[] = []
    const watched = stores.map((store) => ({
      ...store,
      reap: async () => {
        reaped.push(store.table.name)
        return Promise.resolve([])
      },
    }))
    const { events, reaper } = reaperOver(watched, {
      settings: ({ table }) => ({ reaperIntervalMs: table.name === 'poison' ? 600_000 : 1 }),
    })
    let runs = 0
    const fourth = events.next('reaperRan', () => (runs += 1) === 4)
    reaper.start()
    await fourth
    expect(reaped.slice(0, 5)).toEqual(['poison', 'events', 'events', 'events', 'events'])
  })

  it('reports a table whose reap fails, and reaps the others', async () => {
    const stores = [await held(poison, 'gone', 1), await held(outbox.table, 'gone', 3)]
    await expire(outbox.table)
    await db.query({ text: 'alter table public.poison rename to elsewhere' })
    const running = reaperOver(stores)
    expect(await run(running)).toMatchObject({ reaped: 3 })
    await db.query({ text: 'alter table public.elsewhere rename to poison' })
    expect(running.failed).toMatchObject([
      { worker: 'reaper', table: 'public.poison', error: { code: '42P01' } },
    ])
  })

  it('RULE-020-020: continues when the database is back after an outage', async () => {
    await held(outbox.table, 'gone', 3)
    await expire(outbox.table)
    const proxy = await startProxy(database.url)
    const through = openDatabase({ url: proxy.url })
    const store = await openLeaseStore(through, outbox.table, { owner: 'reaper' })
    await proxy.refuse()
    proxy.cut()
    const running = reaperOver([store], {
      db: through,
      settings: () => ({ reaperIntervalMs: 1 }),
      eviction: { checkMs: 1, graceMs: 1 },
    })
    const ran = running.events.next('reaperRan', ({ reaped }) => reaped === 3)
    const failures = Promise.all([
      running.events.next('reaperFailed', ({ table }) => table === 'public.events'),
      running.events.next('reaperFailed', ({ table }) => table === undefined),
    ])
    running.reaper.start()
    for (const { error } of await failures) expect(error).toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
    await proxy.accept()
    await ran
    await running.reaper.stop()
    await through.close()
    await proxy.close()
  })

  it('forgets processes that ended long ago', async () => {
    for (const id of ['ended', 'running']) {
      await db.query(presence('leasehold', describeWorker([], { id }), 0, undefined))
    }
    await db.query({
      text: `update leasehold.workers set died_at = now() - interval '2 days' where id = 'ended'`,
    })
    const running = reaperOver([])
    await run(running)
    await running.reaper.stop()
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ id: 'running' }])
  })

  it('stops in the middle of a run, after the batch that is on its way', async () => {
    const store = await held(outbox.table, 'gone', 30)
    await expire(outbox.table)
    const running = reaperOver([store], { settings: () => ({ reaperIntervalMs: 1, batch: 10 }) })
    let stopped: Promise<void> | undefined
    const first = running.events.next('reaped', () => {
      stopped ??= running.reaper.stop()
      return true
    })
    running.reaper.start()
    await first
    await stopped
    expect(running.reaped).toHaveLength(10)
  })
})
