import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { settled, useWorkers } from '../../../test/support/running-worker.ts'
import { insertJobs, jobStates, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { leaseTable, openLeaseStore } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events, startRuntime } from '../index.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startWorker = useWorkers(url)
const table = leaseTable(WORK_TABLE)
/** A worker that is woken polls so seldom that a test would not end by it. */
const SELDOM = { settings: { pollMs: 3_600_000 }, wake: true }

beforeAll(async () => db.query({ text: WORK_DDL }))
beforeEach(async () => db.query({ text: 'truncate public.jobs restart identity' }))
afterAll(async () => db.close())

it('rows that a reaper of another process takes back are processed at once, not at the next poll', async () => {
  const dead = await openLeaseStore(db, table, { owner: 'dead' })
  await insertJobs(db, 3)
  await dead.claim({ limit: 3, leaseMs: 60_000 })
  const events = new Events()
  const [all, listening] = [settled(events, 3), events.next('listening')]
  await startWorker({ ...SELDOM, handle: async () => undefined }, { events, reaper: false })
  await listening
  await db.query({ text: "update public.jobs set locked_until = now() - interval '1 second'" })
  const reaper = await startRuntime({
    databaseUrl: url,
    log: false,
    heartbeat: 'inline',
    reapTables: [{ name: 'jobs', wake: true, table }],
  })
  await all
  expect(await jobStates(db)).toEqual({ DONE: 3 })
  await reaper.stop()
})

it('rows that a worker releases when it stops are processed by another at once', async () => {
  await insertJobs(db, 20)
  const first = await startWorker({ ...SELDOM, handle: async () => new Promise(() => {}) }, { reaper: false })
  const events = new Events()
  const listening = events.next('listening')
  await startWorker({ ...SELDOM, handle: async () => undefined }, { events, reaper: false })
  await listening
  const rest = settled(events, 10)
  await first.runtime.stop()
  await rest
  expect((await jobStates(db))['DONE']).toBe(10)
})
