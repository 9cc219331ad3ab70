import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { specimens } from '../../../test/support/lease-tables.ts'
import { useProcesses, type TestProcess } from '../../../test/support/processes.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openLeaseStore, type LeaseStore, tableName } from '../../lease/index.ts'
import { openDatabase, type Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { Events, type EventOf } from '../events.ts'
import type { Loop } from '../loop.ts'
import { createReaper, type Reaper, type ReaperOptions } from './reaper.ts'
import { describeWorker, listWorkers, presence, stopped, type WorkerInfo } from '../registry/registry.ts'

useQuietProcess()
const database = useDatabase()
const { spawnNode } = useProcesses()
/** One with a token column, one without. */
const tables = specimens.filter(({ name }) => /^bigint id|^no token/.test(name))
const EVICTION = { checkMs: 20, graceMs: 1_000 }
let db: Database

beforeAll(async () => {
  db = openDatabase({ url: database.url, maxConnections: 20 })
  for (const { ddl } of tables) await db.query({ text: ddl })
})

afterAll(async () => {
  await db.close()
})

beforeEach(async () => {
  await db.query({ text: 'truncate public.events, public.tasks, leasehold.workers' })
})

const started: Loop[] = []

afterEach(async () => {
  await Promise.all(started.splice(0).map(async (loop) => loop.stop()))
})

interface WorkerProcess {
  readonly worker: WorkerInfo
  readonly process: TestProcess
}

/** A process whose session says that the worker is there. */
async function startWorker(id?: string): Promise<WorkerProcess> {
  const process = spawnNode('test/fixtures/session.mjs', [database.url])
  const backendPid = Number(await process.line(() => true))
  const worker = { ...describeWorker(['outbox'], id === undefined ? {} : { id }), pid: process.pid }
  process.send(JSON.stringify(presence('leasehold', worker, 0, backendPid)))
  await process.line((line) => line.includes('had_died'))
  return { worker, process }
}

/** So many rows in each table, held for another ten minutes. */
async function hold({ worker }: Pick<WorkerProcess, 'worker'>, count: number): Promise<LeaseStore[]> {
  return Promise.all(
    tables.map(async ({ insert, table }) => {
      await db.query({ text: insert, values: [count] })
      const store = await openLeaseStore(db, table, { owner: worker.id })
      expect((await store.claim({ limit: count, leaseMs: 600_000 })).claimed).toHaveLength(count)
      return store
    }),
  )
}

interface Running {
  readonly events: Events
  readonly reaper: Reaper
  readonly reaped: EventOf<'reaped'>[]
  readonly died: EventOf<'workerDied'>[]
}

/** The second time that a row of this table is taken back. */
function secondOf({ table }: LeaseStore): (event: EventOf<'reaped'>) => boolean {
  let count = 0
  return (event) => event.table === tableName(table) && (count += 1) === 2
}

function startReaper(stores: readonly LeaseStore[], options: Partial<ReaperOptions> = {}): Running {
  const events = new Events()
  const reaped: EventOf<'reaped'>[] = []
  const died: EventOf<'workerDied'>[] = []
  events.on('reaped', (event) => reaped.push(event))
  events.on('workerDied', (event) => died.push(event))
  const reaper = createReaper({
    db,
    schema: 'leasehold',
    worker: 'reaper',
    stores,
    events,
    settings: () => ({ reaperIntervalMs: 600_000, batch: 4 }),
    eviction: EVICTION,
    ...options,
  })
  started.push(reaper)
  reaper.start()
  return { events, reaper, reaped, died }
}

/** A database that calls back after each of its answers, so that a test can wait for the next look. */
function answering(onAnswer: (text: string) => void): Queryable {
  return {
    async query(statement) {
      try {
        return await db.query(statement)
      } finally {
        onAnswer(statement.text)
      }
    },
  }
}

/** Resolves after so many looks from now on. */
function lookCounter(): { readonly db: Queryable; next(count: number): Promise<void> } {
  let looks = 0
  const waiting = new Set<() => void>()
  return {
    db: answering((text) => {
      if (!text.includes('pg_stat_activity')) return
      looks += 1
      for (const look of waiting) look()
    }),
    async next(count) {
      const enough = looks + count
      await new Promise<void>((resolve) => {
        const look = (): void => {
          if (looks < enough) return
          waiting.delete(look)
          resolve()
        }
        waiting.add(look)
      })
    },
  }
}

async function heldBy(id: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select ((select count(*) from public.events where claimed_by = $1)
      + (select count(*) from public.tasks where starts_with(locked_by, $1 || '#')))::int as count`,
    values: [id],
  })
  return rows[0]?.count ?? -1
}

it('RULE-020-052, RULE-020-021: the death of a killed process is reported once by one of three reapers, and all its leases are taken back', async () => {
  const [victim, neighbour] = [await startWorker(), await startWorker()]
  const stores = await hold(victim, 10)
  await hold(neighbour, 3)
  const counter = lookCounter()
  const all = [0, 1, 2].map((n) =>
    startReaper(stores, { worker: `reaper ${n}`, ...(n === 0 ? { db: counter.db } : {}) }),
  )
  await counter.next(2)
  // Each of them takes back what it finds; which rows is a matter of who is first.
  const reapedSoFar = (): number => all.reduce((sum, { reaped }) => sum + reaped.length, 0)
  const evicted = Promise.race(
    all.map(async ({ events }) => events.next('reaped', () => reapedSoFar() === 20)),
  )
  await victim.process.kill('SIGKILL')
  await evicted
  // Whatever the others still would do, they have done.
  await counter.next(3)
  await Promise.all(all.map(async ({ reaper }) => reaper.stop()))

  const { id, host, pid } = victim.worker
  const died = all.flatMap((running) => running.died)
  expect(died).toMatchObject([{ died: id, host, pid, lastSeenAt: expect.any(Date) }])
  const reaped = all.flatMap((running) => running.reaped)
  expect(reaped).toHaveLength(20)
  for (const event of reaped) {
    expect(event).toMatchObject({ owner: id, evicted: true, staleMs: 0 })
  }
  expect(await heldBy(id)).toBe(0)
  expect(await heldBy(neighbour.worker.id)).toBe(6)
  const { rows } = await db.query({
    text: 'select distinct attempts, status from public.events where claimed_by is null',
  })
  expect(rows).toEqual([{ attempts: 1, status: 'PENDING' }])
  await neighbour.process.kill('SIGKILL')
})

it('without eviction the leases of a killed process expire', async () => {
  const victim = await startWorker()
  const stores = await hold(victim, 2)
  await victim.process.kill('SIGKILL')
  const running = startReaper(stores, { eviction: false, settings: () => ({ reaperIntervalMs: 1 }) })
  let runs = 0
  await running.events.next('reaperRan', () => (runs += 1) === 20)
  expect(running.reaped).toEqual([])
  expect(await listWorkers(db, 'leasehold')).toMatchObject([{ state: 'alive' }])
  expect(await heldBy(victim.worker.id)).toBe(4)
})

it('a claim that was on its way when its process died is taken back by a second pass', async () => {
  const victim = await startWorker()
  const [first, ...others] = await hold(victim, 1)
  if (first === undefined) throw new Error('there is a store')
  let claimedLate = false
  const late: LeaseStore = {
    ...first,
    async reap(request) {
      const reaped = await first.reap(request)
      if (request?.ownedBy !== undefined && !claimedLate) {
        claimedLate = true
        await first.claim({ limit: 1, leaseMs: 600_000 })
      }
      return reaped
    },
  }
  const counter = lookCounter()
  const running = startReaper([late, ...others], { db: counter.db })
  await counter.next(1)
  const second = running.events.next('reaped', secondOf(first))
  await victim.process.kill('SIGKILL')
  expect(await second).toMatchObject({ owner: victim.worker.id, evicted: true })
  expect(await heldBy(victim.worker.id)).toBe(0)
  expect(running.died).toHaveLength(1)
})

it('a table whose reap fails is retried until the leases of dead processes are taken back', async () => {
  const victim = await startWorker()
  const [first, ...others] = await hold(victim, 1)
  if (first === undefined) throw new Error('there is a store')
  let failures = 3
  const failing: LeaseStore = {
    ...first,
    async reap(request) {
      if (request?.ownedBy === undefined || failures === 0) return first.reap(request)
      failures -= 1
      throw new Error('not now')
    },
  }
  const counter = lookCounter()
  const running = startReaper([failing, ...others], { db: counter.db })
  const failed: EventOf<'reaperFailed'>[] = []
  running.events.on('reaperFailed', (event) => failed.push(event))
  await counter.next(1)
  const reaped = running.events.next('reaped', ({ table }) => table === 'public.events')
  await victim.process.kill('SIGKILL')
  await reaped
  expect(failed).toHaveLength(3)
  for (const event of failed) expect(event).toMatchObject({ table: 'public.events' })
})

it('a process that returns after it was declared dead keeps the leases it takes from then on', async () => {
  const victim = await startWorker()
  const [first] = await hold(victim, 1)
  if (first === undefined) throw new Error('there is a store')
  let evictions = 0
  const back: { process?: TestProcess } = {}
  const store: LeaseStore = {
    ...first,
    async reap(request) {
      const reaped = await first.reap(request)
      if (request?.ownedBy === undefined) return reaped
      evictions += 1
      if (back.process === undefined) {
        back.process = (await startWorker(victim.worker.id)).process
        await first.claim({ limit: 1, leaseMs: 600_000 })
      }
      return reaped
    },
  }
  const counter = lookCounter()
  const running = startReaper([store], { db: counter.db })
  await counter.next(1)
  const reaped = running.events.next('reaped')
  await victim.process.kill('SIGKILL')
  await reaped
  await counter.next(3)
  expect(evictions).toBe(1)
  expect(running.reaped).toHaveLength(1)
  expect(await listWorkers(db, 'leasehold')).toMatchObject([{ id: victim.worker.id, state: 'alive' }])
  await running.reaper.stop()
  await back.process?.kill('SIGKILL')
})

describe('a process whose end was seen', () => {
  /** No check of this reaper would ever declare a process dead. */
  const NEVER = { checkMs: 600_000, graceMs: 600_000 }

  async function wasMissing(id: string): Promise<boolean | undefined> {
    const text = 'select missing_since is not null as missing from leasehold.workers where id = $1'
    return (await db.query<{ missing: boolean }>({ text, values: [id] })).rows[0]?.missing
  }

  it('RULE-020-052: is declared dead at once, and its leases are taken back, without a check that misses its session', async () => {
    const [victim, neighbour] = [await startWorker(), await startWorker()]
    const stores = await hold(victim, 10)
    await hold(neighbour, 3)
    const running = startReaper(stores, { eviction: NEVER })
    await victim.process.kill('SIGKILL')
    await running.reaper.evict(victim.worker.id)
    expect(await heldBy(victim.worker.id)).toBe(0)
    expect(await heldBy(neighbour.worker.id)).toBe(6)
    expect(running.reaped).toHaveLength(20)
    expect(running.reaped[0]).toMatchObject({ owner: victim.worker.id, evicted: true })
    const { id, host, pid } = victim.worker
    expect(running.died).toMatchObject([{ died: id, host, pid, lastSeenAt: expect.any(Date) }])
    expect(await wasMissing(id)).toBe(false)
    // Told once more, it is not reported once more.
    await running.reaper.evict(id)
    expect(running.died).toHaveLength(1)
    await neighbour.process.kill('SIGKILL')
  })

  it('is evicted also where a pooler hides its session', async () => {
    const worker = describeWorker(['outbox'])
    await db.query(presence('leasehold', worker, 0, undefined))
    const running = startReaper(await hold({ worker }, 2), { eviction: NEVER })
    await running.reaper.evict(worker.id)
    expect(await heldBy(worker.id)).toBe(0)
    expect(running.died).toMatchObject([{ died: worker.id }])
  })

  it('a claim that was on its way when it ended is taken back by a later pass', async () => {
    const victim = await startWorker()
    const stores = await hold(victim, 1)
    const running = startReaper(stores, { eviction: NEVER })
    await victim.process.kill('SIGKILL')
    await running.reaper.evict(victim.worker.id)
    const late = running.events.next('reaped')
    await stores[0]?.claim({ limit: 1, leaseMs: 600_000 })
    expect(await late).toMatchObject({ owner: victim.worker.id, evicted: true })
  })

  it('is not declared dead if it had stopped, but the leases that it did not finish are taken back', async () => {
    const victim = await startWorker()
    const stores = await hold(victim, 2)
    const running = startReaper(stores, { eviction: NEVER })
    await db.query(stopped('leasehold', victim.worker.id))
    await victim.process.kill('SIGKILL')
    // A row that is locked during the first pass, by a renewal for example, is taken back by a later one.
    const last = await db.transaction(async (tx) => {
      await tx.query({ text: 'select from public.events limit 1 for update' })
      await running.reaper.evict(victim.worker.id)
      expect(await heldBy(victim.worker.id)).toBe(1)
      return { reaped: running.events.next('reaped') }
    })
    await last.reaped
    expect(await heldBy(victim.worker.id)).toBe(0)
    expect(running.died).toEqual([])
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ state: 'stopped' }])
  })

  it('is evicted when the database is back, if it could not be reached', async () => {
    const victim = await startWorker()
    const stores = await hold(victim, 1)
    let failures = 2
    const away: Queryable = {
      async query(statement) {
        if (!statement.text.includes('set died_at = now()') || failures === 0) return db.query(statement)
        failures -= 1
        throw new Error('not now')
      },
    }
    const running = startReaper(stores, { eviction: NEVER, db: away })
    await victim.process.kill('SIGKILL')
    await running.reaper.evict(victim.worker.id)
    expect(failures).toBe(0)
    expect(running.died).toHaveLength(1)
    expect(await heldBy(victim.worker.id)).toBe(0)
  })
})
