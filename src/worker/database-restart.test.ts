import { EventEmitter, once } from 'node:events'
import { afterAll, beforeAll, beforeEach, expect, it, onTestFinished } from 'vitest'
import { useProcesses } from '../../test/support/processes.ts'
import { records, statuses, write } from '../../test/support/running-relay.ts'
import { collect, door, settled } from '../../test/support/running-worker.ts'
import { startServer, type TestServer } from '../../test/support/server.ts'
import { insertJobs, jobs, jobStates, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { startWorker, type Line, type WorkerProcess } from '../../test/support/worker-process.ts'
import type { Publisher } from '../outbox/publisher.ts'
import { relay } from '../outbox/relay.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { leaseTable } from '../lease/index.ts'
import { Events, startRuntime } from './index.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const processes = useProcesses()
let server: TestServer
let db: Database

/** What the table shows: every time that a row becomes DONE. */
const SETTLEMENTS_DDL = `
  create table public.settlements (job bigint not null);
  create function public.note_settlement() returns trigger language plpgsql as
    $$ begin insert into public.settlements values (new.id); return null; end $$;
  create trigger settled after update on public.jobs
    for each row when (new.status = 'DONE') execute function public.note_settlement()`

beforeAll(async () => {
  server = await startServer()
  db = openDatabase({ url: server.url })
  await migrate(db)
  await db.query({ text: WORK_DDL })
  await db.query({ text: SETTLEMENTS_DDL })
  // A row that is in the way of every restart is still not to blame.
  await db.query({ text: 'alter table public.jobs alter max_attempts set default 100' })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs, public.settlements' })
})
afterAll(async () => {
  await db.close()
  await server.remove()
})

const TIMING = { leaseMs: 2_000, reaperIntervalMs: 500, pollMs: 100 }

async function settlements(): Promise<string[]> {
  const { rows } = await db.query<{ job: string }>({
    text: 'select job from public.settlements order by job',
  })
  return rows.map(({ job }) => job)
}

/** Resolves with the next line about this that is none of those known. */
async function news(worker: WorkerProcess, type: string, known: readonly Line[]): Promise<Line> {
  const seen = new Set(known.map((line) => JSON.stringify(line)))
  return worker.heard(type, (line) => !seen.has(JSON.stringify(line)))
}

it('RULE-020-012, LIFE-18: five restarts of the database under load end no worker process, lose no row and settle none twice', async () => {
  const settings = { ...TIMING, concurrency: 10 }
  const workers = ['one', 'two'].map((id) =>
    startWorker(processes, {
      databaseUrl: server.url,
      settings,
      shortMs: 50,
      runtime: { id },
      tell: ['settled', 'databaseLost', 'lost', 'trouble'],
    }),
  )
  for (const worker of workers) await worker.heard('up')
  const ids: string[] = []
  for (let restart = 0; restart < 5; restart += 1) {
    const before = workers.map((worker) => worker.all('settled'))
    ids.push(...(await insertJobs(db, 400, 'short')))
    // Both have settled rows after every restart.
    await Promise.all(workers.map(async (worker, i) => news(worker, 'settled', before[i] ?? [])))
    expect((await jobStates(db))['CLAIMED']).toBeGreaterThan(0)
    await server.restart('immediate')
  }
  for (;;) {
    const known = workers.map((worker) => worker.all('settled'))
    const { DONE: done = 0 } = await jobStates(db)
    if (done === ids.length) break
    await Promise.race(workers.map(async (worker, i) => news(worker, 'settled', known[i] ?? [])))
  }
  expect(await settlements()).toEqual(ids)
  for (const worker of workers) {
    // Each of them felt it.
    expect(worker.all('databaseLost').length + worker.all('lost').length).toBeGreaterThan(0)
    expect(await worker.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(worker.all('down')).toEqual([{ type: 'down', clean: true }])
    expect(worker.output().stderr).toBe('')
  }
})

it('RULE-020-012: while the database is away processing stops and nothing is completed; afterwards the reaper recovers the rows', async () => {
  const ids = await insertJobs(db, 5, 'hold')
  const worker = startWorker(processes, {
    databaseUrl: server.url,
    settings: { ...TIMING, concurrency: 2 },
    heedsSignal: false,
    tell: ['lost', 'fencedOff', 'reaped', 'settled', 'claimed'],
  })
  const running = ids.slice(0, 2)
  for (const id of running) await worker.heard('holding', (line) => line['id'] === id)

  await server.stop('immediate')
  for (const id of running) {
    const heard = await worker.heard('heard', (line) => line['id'] === id)
    expect(['heartbeatFailed', 'untrusted']).toContain(heard['cause'])
  }
  // Their handlers come to a good end after all, which is too late.
  worker.send('finish')
  for (const id of running) await worker.heard('fencedOff', (line) => line['id'] === id)
  // Those that waited for a slot have got none.
  expect(worker.all('holding').map((line) => line['id'])).toEqual(running)
  expect(worker.all('settled')).toEqual([])

  await server.start()
  expect(await settlements()).toEqual([])
  for (const id of running) await worker.heard('reaped', (line) => line['id'] === id)
  const done = new Set<unknown>()
  while (done.size < ids.length) {
    const known = worker.all('settled')
    for (const line of known) for (const id of line['ids'] as string[]) done.add(id)
    if (done.size === ids.length) break
    worker.send('finish')
    await Promise.race([news(worker, 'settled', known), news(worker, 'holding', worker.all('holding'))])
  }
  expect(await settlements()).toEqual(ids)
  const rows = await jobs(db)
  for (const id of running) {
    expect(rows.find((row) => row.id === id)).toMatchObject({
      status: 'DONE',
      lock_token: A_TOKEN,
      attempts: 1,
    })
  }
  expect(await worker.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('RULE-020-012, D10: with the default attempts and retries of the outbox, two outages end every publication at once, complete none, and make no event dead or a suspect', async () => {
  const COUNT = 10
  const held = new Set<string>()
  const holding = new EventEmitter()
  let mayPublish = door()
  /** Holds every event, whether its lease is lost meanwhile or not, and acknowledges it in the end. */
  const publisher: Publisher = {
    name: 'patient',
    maxBatch: 1,
    async publish([event], { signal }) {
      if (event === undefined || mayPublish.isOpen()) return
      held.add(event.id)
      holding.emit('more')
      signal.addEventListener('abort', () => held.delete(event.id))
      await mayPublish.opened
    },
  }
  const events = new Events()
  const completed: unknown[] = []
  for (const type of ['failed', 'settled'] as const) events.on(type, (event) => completed.push(event))
  await write(db, ...Array.from({ length: COUNT }, () => null))
  // The lease is short, so that the test is. The heartbeat and the reaper follow from it; all else are the defaults.
  const runtime = await startRuntime({
    databaseUrl: server.url,
    log: false,
    events,
    settings: { leaseMs: 3_000 },
    workers: [relay({ publisher, retention: false })],
  })
  onTestFinished(async () => void (await runtime.stop()))
  const all = (found: readonly { readonly id: string }[]): boolean =>
    new Set(found.map(({ id }) => id)).size === COUNT

  for (let outage = 1; outage <= 2; outage += 1) {
    while (held.size < COUNT) await once(holding, 'more')
    const lost = collect(events, 'lost', all)
    const fencedOff = collect(events, 'fencedOff', all)
    await server.stop('immediate')
    // Processing stops at once, while the database is still away.
    for (const { reason } of await lost) expect(['heartbeatFailed', 'untrusted']).toContain(reason)
    expect([...held]).toEqual([])
    // Every publication is acknowledged after all, too late: nothing is completed.
    mayPublish.open()
    await fencedOff
    mayPublish = door()
    const reaped = collect(events, 'reaped', all)
    await server.start()
    for (const { outcome } of await reaped) expect(outcome).toBe('retry')
    expect(completed).toEqual([])
  }
  for (const { status, attempts, expiries } of await records(db)) {
    expect(['PENDING', 'CLAIMED']).toContain(status)
    expect([attempts, expiries]).toEqual([2, 0])
  }
  mayPublish.open()
  let published = 0
  await events.next('settled', ({ outcome, ids }) => {
    expect(outcome).toBe('done')
    published += ids.length
    return published === COUNT
  })
  expect(await statuses(db)).toEqual({ PUBLISHED: COUNT })
})

it('D10: rows whose leases expire in two outages, and whose process lives, are no suspects, and those that never started lose no attempt', async () => {
  const SLOTS = 4
  // As many again wait for a slot.
  const COUNT = 2 * SLOTS
  const holding = new Map<string, () => void>()
  const started = new Map<string, number>()
  const mayFinish = door()
  const changed = new EventEmitter()
  const events = new Events()
  const ids = await insertJobs(db, COUNT)
  const runtime = await startRuntime({
    databaseUrl: server.url,
    log: false,
    events,
    settings: { ...TIMING, concurrency: SLOTS },
    workers: [
      {
        name: 'jobs',
        table: leaseTable(WORK_TABLE),
        async handle({ id, signal }) {
          if (mayFinish.isOpen()) return
          started.set(id, (started.get(id) ?? 0) + 1)
          await new Promise<void>((resolve) => {
            holding.set(id, resolve)
            changed.emit('more')
            signal.addEventListener('abort', () => resolve())
          })
          holding.delete(id)
        },
      },
    ],
  })
  onTestFinished(async () => void (await runtime.stop()))
  for (let outage = 1; outage <= 2; outage += 1) {
    while (holding.size < SLOTS) await once(changed, 'more')
    await expect.poll(async () => jobStates(db), { timeout: 60_000 }).toEqual({ CLAIMED: COUNT })
    const lost = collect(events, 'lost', (all) =>
      [...holding.keys()].every((id) => all.some((one) => one.id === id)),
    )
    await server.stop('immediate')
    await lost
    await server.start()
    // By the clock of the database all leases have expired.
    await db.query({ text: 'select pg_sleep_until(max(locked_until)) from public.jobs' })
  }
  // As many as before run at once.
  while (holding.size < SLOTS) await once(changed, 'more')
  const over = settled(events, ids)
  const runs = new Map(started)
  for (const id of holding.keys()) runs.set(id, (runs.get(id) ?? 0) - 1)
  // Rows that had not started go back in a statement of their own, and may run again before the others are back.
  await expect
    .poll(async () => {
      const text = 'select id, attempts, expiries from public.jobs order by id'
      return (await db.query<{ id: string; attempts: number; expiries: number }>({ text })).rows
    })
    .toEqual(ids.map((id) => ({ id, attempts: runs.get(id) ?? 0, expiries: 0 })))
  mayFinish.open()
  for (const finish of holding.values()) finish()
  await over
  expect(await jobStates(db)).toEqual({ DONE: COUNT })
}, 120_000)
