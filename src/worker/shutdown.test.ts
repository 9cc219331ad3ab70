import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { insertJobs, type Job, jobs, jobStates, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { startWorker } from '../../test/support/worker-process.ts'
import { leaseTable, openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { SuspectSlot } from './claiming/suspect-slot.ts'
import { SILENT_LOG } from './context.ts'
import { Events } from './events.ts'
import { HeldRows } from './heartbeat/held-rows.ts'
import { type WorkerSettings, workerSettings } from './settings.ts'
import { stopDeadlines } from './stop-deadlines.ts'
import { Worker } from './worker.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs' })
})
afterAll(async () => db.close())

it('RULE-020-030: a worker that is stopped under load ends within the timeout; started rows are done, the others are as before, and none is leased', async () => {
  await insertJobs(db, 800, 'short')
  const worker = startWorker(processes, {
    databaseUrl: url,
    // A worker that waited for this timeout would outlast the test.
    settings: { leaseMs: 3_600_000, shutdownTimeoutMs: 3_600_000, prefetch: 200 },
    shortMs: 80,
    tell: ['started', 'aborted', 'released', 'lost', 'paused'],
  })
  // By then claims have come back several times, and rows wait for a slot.
  await worker.heard('started', () => worker.all('started').length >= 60)
  expect(await worker.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(worker.all('down')).toEqual([{ type: 'down', clean: true }])
  expect([...worker.all('aborted'), ...worker.all('lost')]).toEqual([])

  const started = new Set(worker.all('started').map(({ id }) => id))
  const rows = await jobs(db)
  expect(started.size).toBeLessThan(rows.length)
  expect(worker.all('released')).not.toEqual([])
  for (const { id, status, attempts, claimed_by } of rows) {
    expect({ status, attempts, claimed_by }).toEqual({
      status: started.has(id) ? 'DONE' : 'PENDING',
      attempts: 0,
      claimed_by: null,
    })
  }
  const { rows: claimable } = await db.query({
    text: `select from public.jobs where status = 'PENDING' and available_at <= now()`,
  })
  expect(claimable).toHaveLength(rows.length - started.size)
})

it('RULE-020-031, D9: a signal fires at the shutdown timeout and not before; if the handler obeys it, an attempt is counted, the row is claimable at once, and the stop is clean', async () => {
  await insertJobs(db, 3, 'hold')
  const timeoutMs = 1_500
  const worker = startWorker(processes, {
    databaseUrl: url,
    settings: { leaseMs: 60_000, shutdownTimeoutMs: timeoutMs },
    tell: ['aborted', 'paused'],
  })
  await worker.heard('holding', () => worker.all('holding').length === 3)
  const told = performance.now()
  const exited = worker.kill('SIGTERM')
  expect(await worker.heard('heard')).toMatchObject({ cause: 'stopping' })
  // On a slow machine it may be later, but never earlier.
  expect(performance.now() - told).toBeGreaterThanOrEqual(timeoutMs - 5)
  expect(await exited).toEqual({ code: 0, signal: null })
  expect(worker.all('heard')).toHaveLength(3)
  expect(worker.all('aborted')).toHaveLength(3)
  expect(await jobs(db)).toMatchObject(
    Array.from({ length: 3 }, () => ({ status: 'PENDING', attempts: 1, expiries: 0, claimed_by: null })),
  )
})

it('RULE-020-030: the row of a handler that ignores its signal is left to the reaper, and the exit code is 1', async () => {
  await insertJobs(db, 1, 'hold')
  const [short] = await insertJobs(db, 1, 'short')
  // The lease outlives the test: what takes the row back is that the process has ended.
  const settings = { leaseMs: 3_600_000, shutdownTimeoutMs: 500, pollMs: 50 }
  const worker = startWorker(processes, {
    databaseUrl: url,
    settings,
    runtime: { id: 'stubborn', reaper: false },
    heedsSignal: false,
    tell: ['settled'],
  })
  await worker.heard('holding')
  await worker.heard('settled', (line) => (line['ids'] as unknown[]).includes(short))
  expect(await worker.kill('SIGTERM')).toEqual({ code: 1, signal: null })
  expect(worker.all('heard')).toMatchObject([{ cause: 'stopping' }])
  expect(worker.all('down')).toEqual([{ type: 'down', clean: false }])
  expect(await jobs(db)).toMatchObject([{ status: 'CLAIMED', claimed_by: 'stubborn' }, { status: 'DONE' }])

  const heir = startWorker(processes, { databaseUrl: url, settings, tell: ['reaped', 'workerDied'] })
  expect(await heir.heard('workerDied')).toMatchObject({ died: 'stubborn' })
  expect(await heir.heard('reaped')).toMatchObject({ owner: 'stubborn', evicted: true })
  await heir.heard('holding')
  heir.send('finish')
  expect(await heir.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(await jobStates(db)).toEqual({ DONE: 2 })
  expect((await jobs(db))[0]).toMatchObject({ attempts: 1, lock_token: A_TOKEN })
})

it('RULE-020-030: while a worker stops, a slow row does not delay the settlement of the others', async () => {
  const [slow] = await insertJobs(db, 1, 'hold')
  await insertJobs(db, 20, 'short')
  const worker = startWorker(processes, {
    databaseUrl: url,
    settings: { leaseMs: 3_600_000, shutdownTimeoutMs: 3_600_000, concurrency: 30 },
    shortMs: 200,
    tell: ['started', 'settled', 'paused'],
  })
  await worker.heard('started', () => worker.all('started').length === 21)
  const exited = worker.kill('SIGTERM')
  await worker.heard('paused', ({ reason }) => reason === 'stopping')
  const settled = (): unknown[] => worker.all('settled').flatMap(({ ids }) => ids as unknown[])
  await worker.heard('settled', () => settled().length === 20)
  expect(settled()).not.toContain(slow)
  worker.send('finish')
  expect(await exited).toEqual({ code: 0, signal: null })
  expect(await jobStates(db)).toEqual({ DONE: 21 })
})

it('RULE-020-030, RULE-020-031: a stop fits into the lease, also with handlers that never return and a database that never answers', async () => {
  const proxy = await startProxy(url)
  await insertJobs(db, 3, 'hold')
  const worker = startWorker(processes, {
    databaseUrl: proxy.url,
    settings: { leaseMs: 20_000, shutdownTimeoutMs: 1_000, concurrency: 2 },
    runtime: { id: 'deaf' },
    heedsSignal: false,
    wake: true,
    tell: ['paused', 'aborted', 'workerStopped'],
  })
  await worker.heard('holding', () => worker.all('holding').length === 2)
  proxy.swallow(true)
  const told = performance.now()
  expect(await worker.kill('SIGTERM')).toEqual({ code: 1, signal: null })
  // 1 s for the handlers, and 6 s at most for the rest. A busy machine may double that; a stop that waits three times as long is too long.
  expect(performance.now() - told).toBeLessThan(2 * 7_000)
  // It has exited, and what it could not settle is still leased: whoever takes the rows over finds no handler of it running.
  const { rows } = await db.query({
    text: `select from public.jobs where claimed_by = 'deaf' and locked_until > now()`,
  })
  expect(rows.length).toBeGreaterThanOrEqual(2)
  const order = ['paused', 'aborted', 'aborted', 'workerStopped', 'down']
  expect(order.map((type) => worker.all(type)[0]?.type)).toEqual(order)
  expect(worker.all('down')).toEqual([{ type: 'down', clean: false }])
  await proxy.close()
})

it('RULE-020-031: when the steps of a stop end is fixed when it begins, and the last one ends with the lease', () => {
  const rounded = (timing: Partial<WorkerSettings>): number[] => {
    const { handlers, settlements, end } = stopDeadlines(0, workerSettings(timing))
    return [handlers, settlements, end].map(Math.round)
  }
  expect(rounded({})).toEqual([24_000, 26_000, 30_000])
  expect(rounded({ leaseMs: 1_000 })).toEqual([800, 867, 1_000])
  expect(rounded({ leaseMs: 4_000, shutdownTimeoutMs: 4_000 })).toEqual([3_200, 3_467, 4_000])
  expect(rounded({ leaseMs: 300_000 })).toEqual([240_000, 242_000, 246_000])
  expect(rounded({ leaseMs: 30_000, shutdownTimeoutMs: 0 })).toEqual([0, 2_000, 6_000])
})

describe.each([
  ['default timings of a short lease', { leaseMs: 1_000 }],
  ['a shutdown timeout as long as the lease', { leaseMs: 4_000, shutdownTimeoutMs: 4_000 }],
  ['default timings', {}],
])('%s', (_, timing) => {
  it.each(['never returns', 'returns'] as const)(
    'RULE-020-031: a worker stops within its lease if the database never answers and its handler %s',
    async (returning) => {
      const settings = workerSettings({ ...timing, claimLoops: 1, pollMs: 100_000 })
      const [id] = await insertJobs(db, 1)
      const store = await openLeaseStore<Job>(db, leaseTable(WORK_TABLE), { owner: 'unanswered' })
      const claimed = await store.claim({ limit: 1, leaseMs: settings.leaseMs, ids: [String(id)] })
      // From here on nothing happens but what the worker does, and time passes only as the test says.
      vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setImmediate', 'clearImmediate', 'Date'] })
      try {
        const never = async (): Promise<never> => new Promise<never>(() => undefined)
        // The heartbeat renews it.
        const claims = [
          { ...claimed, drained: true, continued: 0, trustedUntil: Date.now() + 100 * settings.leaseMs },
        ]
        const signals: unknown[] = []
        const worker = new Worker<Job>({
          name: 'jobs',
          store: {
            ...store,
            cycle: (options) => ({
              ...store.cycle(options),
              send: async () => {
                const claim = claims.pop()
                return claim === undefined ? never() : { ended: [], claim }
              },
            }),
            settle: never,
            release: never,
          },
          handle: async ({ signal }) => {
            await new Promise<void>((resolve) => {
              signal.addEventListener('abort', () => {
                signals.push(signal.reason)
                if (returning === 'returns') resolve()
              })
            })
          },
          settings,
          suspects: new SuspectSlot(),
          findForgotten: async () => Promise.resolve([]),
          events: new Events(),
          log: SILENT_LOG,
          clock: { monotonicNow: () => Date.now() },
          random: Math.random,
          held: new HeldRows(),
          hold: () => undefined,
          isWoken: () => false,
        })
        worker.start()
        await vi.advanceTimersByTimeAsync(1)
        expect(worker.inFlight).toBe(1)
        const begunAt = Date.now()
        let tookMs: number | undefined
        const stopping = worker.stop().then((result) => {
          tookMs = Date.now() - begunAt
          return result
        })
        await vi.advanceTimersByTimeAsync(10 * settings.leaseMs)
        expect(await stopping).toEqual({ clean: false })
        expect(signals).toHaveLength(1)
        expect(tookMs).toBeLessThan(settings.leaseMs)
        expect(tookMs).toBeGreaterThanOrEqual(Math.min(settings.shutdownTimeoutMs, 0.8 * settings.leaseMs))
      } finally {
        vi.useRealTimers()
      }
    },
  )
})
