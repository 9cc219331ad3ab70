import { setImmediate as turn } from 'node:timers/promises'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { Events } from './events.ts'
import { type Served, ServedWorkers } from './served-workers.ts'
import { SettingsLayers, type WorkerSettings } from './settings.ts'

/** A database that answers with what was stored when it was asked, the last question first. */
function slowDatabase() {
  const database = { stored: {}, asked: [] as (() => void)[] }
  const db = {
    query: async () => {
      const rows = [{ value: database.stored }]
      return new Promise((resolve) => database.asked.push(() => resolve({ rows })))
    },
  }
  async function answerAll(): Promise<void> {
    for (let answer = database.asked.pop(); answer !== undefined; answer = database.asked.pop()) {
      answer()
      await turn()
    }
  }
  return { database, db, answerAll }
}

async function served() {
  const { database, db, answerAll } = slowDatabase()
  const events = new Events()
  // Only `query` is called.
  const options = { db: db as never, schema: 'leasehold', worker: 'w', events, post: () => undefined }
  const workers = new ServedWorkers(options)
  const layers = new SettingsLayers(undefined, undefined)
  const first = workers.firstSettings('jobs', 'public.jobs', layers)
  await answerAll()
  const worker = {
    name: 'jobs',
    table: 'public.jobs',
    settings: await first,
    change(settings: WorkerSettings) {
      worker.settings = settings
    },
  }
  // What `ServedWorkers` uses of them.
  const added = { declaration: { name: 'jobs' }, worker, layers } as unknown as Served
  return { workers, worker, added, database, answerAll }
}

/** Between two readings of the settings of a worker. */
const INTERVAL_MS = 100

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'performance'] }))
afterEach(() => void vi.useRealTimers())

it('an older answer that arrives late does not undo a newer change: a poll of the settings, and a pause that is announced meanwhile', async () => {
  const { workers, worker, added, database, answerAll } = await served()
  workers.add(added)
  await turn()
  await answerAll()
  const polled = workers.readAllSettings()
  await vi.advanceTimersByTimeAsync(INTERVAL_MS)
  expect(database.asked).toHaveLength(1)
  database.stored = { paused: true }
  workers.heard({ type: 'settingsChanged', name: 'jobs' })
  await turn()
  await answerAll()
  await vi.advanceTimersByTimeAsync(INTERVAL_MS)
  await answerAll()
  await polled
  expect(worker.settings.paused).toBe(true)
})

it('a change that is announced while a worker starts is applied once it runs', async () => {
  const { workers, worker, added, database, answerAll } = await served()
  database.stored = { paused: true }
  workers.heard({ type: 'settingsChanged', name: 'jobs' })
  await turn()
  await answerAll()
  workers.add(added)
  await vi.advanceTimersByTimeAsync(INTERVAL_MS)
  await answerAll()
  expect(worker.settings.paused).toBe(true)
})

it('however many changes are announced, and whoever announces them, settings are read every 100 ms at most', async () => {
  const { workers, added, database, answerAll } = await served()
  workers.add(added)
  await turn()
  await answerAll()
  let readings = 0
  for (let ms = 0; ms < 1_000; ms += 1) {
    workers.heard({ type: 'settingsChanged', name: 'jobs' })
    await vi.advanceTimersByTimeAsync(1)
    readings += database.asked.length
    await answerAll()
  }
  expect(readings).toBeGreaterThanOrEqual(8)
  expect(readings).toBeLessThanOrEqual(10)
})
