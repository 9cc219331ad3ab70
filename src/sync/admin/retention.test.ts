import { Client } from 'pg'
import { afterAll, beforeEach, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import {
  chunkStates,
  emptySync,
  jobStates,
  makeChunks,
  makeJob,
  shareChunks,
} from '../../../test/support/sync-rows.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../../worker/index.ts'
import { createSync } from '../sync.ts'
import { applyRetention } from './retention.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
afterAll(async () => db.close())
beforeEach(async () => emptySync(db))

const DAY_MS = 86_400_000
const OLD = { endedAgoMs: 30 * DAY_MS + 60_000, agoMs: 40 * DAY_MS }
const QUICK = { pauseMs: 0 }

async function ids(): Promise<string[]> {
  return (await jobStates(db)).map(({ id }) => id)
}

async function links(): Promise<number | null> {
  return (await db.query({ text: 'select from leasehold.sync_job_chunks' })).rowCount
}

it('D11: jobs that ended more than 30 days ago go, however long ago they were created; their checkpoints stay', async () => {
  const completed = await makeJob(db, { ...OLD, state: 'completed' })
  await makeChunks(db, completed, 3, { state: 'done' })
  await makeJob(db, { ...OLD, state: 'failed' })
  const retained = [
    await makeJob(db, { state: 'completed', endedAgoMs: 30 * DAY_MS - 60_000, agoMs: 40 * DAY_MS }),
    await makeJob(db, { state: 'failed', endedAgoMs: 30 * DAY_MS - 60_000, agoMs: 40 * DAY_MS }),
    await makeJob(db, { agoMs: 400 * DAY_MS }),
  ]
  await shareChunks(db, retained[2] ?? '', completed)
  const before = await chunkStates(db)
  expect(await applyRetention(db, QUICK)).toMatchObject({ jobs: 2 })
  expect(await ids()).toEqual(retained)
  expect(await chunkStates(db)).toEqual(before)
  expect(await links()).toBe(3)
  expect(await applyRetention(db, QUICK)).toMatchObject({ jobs: 0 })
})

it('the time can be chosen for completed and for failed jobs, and null means for ever', async () => {
  const made = { endedAgoMs: 10_000, agoMs: 20_000 }
  await makeJob(db, { ...made, state: 'completed' })
  await makeJob(db, { ...made, state: 'failed' })
  expect(await applyRetention(db, { ...QUICK, completedMs: null, failedMs: null })).toMatchObject({ jobs: 0 })
  expect(await applyRetention(db, { ...QUICK, completedMs: 20_000, failedMs: 5_000 })).toMatchObject({
    jobs: 1,
  })
  expect(await jobStates(db)).toMatchObject([{ state: 'COMPLETED' }])
  expect(await applyRetention(db, { ...QUICK, completedMs: 5_000, failedMs: null })).toMatchObject({
    jobs: 1,
  })
})

it('jobs are removed in batches by the number of chunks, and each job whole, however large', async () => {
  for (const matrix of ['a', 'b', 'c', 'd']) {
    const jobId = await makeJob(db, { ...OLD, matrix, state: 'completed' })
    await makeChunks(db, jobId, matrix === 'b' ? 30 : 3, { matrix, state: 'done' })
  }
  const stop = new AbortController()
  const sizes: number[] = []
  const counting = {
    ...db,
    query: async <Row extends object>(statement: Parameters<typeof db.query>[0]) => {
      const result = await db.query<Row>(statement)
      sizes.push(result.rowCount ?? 0)
      return result
    },
  }
  expect(await applyRetention(counting, { ...QUICK, batch: 10, signal: stop.signal })).toMatchObject({
    jobs: 4,
  })
  // The first statement finds chunks that no job wants any more, the last one failed jobs.
  expect(sizes).toEqual([0, 1, 1, 2, 0, 0])
  expect(await links()).toBe(0)
})

it('a run that is told to stop stops; a locked job is skipped', async () => {
  const held = await makeJob(db, { ...OLD, state: 'failed' })
  await makeJob(db, { ...OLD, state: 'failed' })
  expect(await applyRetention(db, { ...QUICK, signal: AbortSignal.abort() })).toMatchObject({ jobs: 0 })
  const client = new Client({ connectionString: url })
  await client.connect()
  onTestFinished(async () => client.end())
  await client.query('begin')
  await client.query('select from leasehold.sync_jobs where id = $1 for update', [held])
  expect(await applyRetention(db, QUICK)).toMatchObject({ jobs: 1 })
  await client.query('rollback')
  expect(await ids()).toEqual([held])
})

it.each([
  [{ completedMs: -1 }, /completedMs is -1/],
  [{ failedMs: Number.NaN }, /failedMs is NaN/],
  [{ batch: 0 }, /batch is 0/],
])('the retention %j is refused', async (options, message) => {
  await expect(applyRetention(db, options)).rejects.toThrow(message)
})

it('a runner applies retention, unless it is switched off', async () => {
  const sync = createSync()
  sync.define('numbers', { plan: () => [], syncChunk: async () => Promise.resolve() })
  const jobId = await makeJob(db, { ...OLD, state: 'completed' })
  const [jobs, chunks] = sync.runner({ retention: false })
  expect([jobs.maintenance, chunks.maintenance]).toEqual([undefined, undefined])
  expect(await ids()).toEqual([jobId])
  const events = new Events()
  const ran = events.next('maintenanceRan', ({ done }) => done['jobs'] === 1)
  await start(sync.runner({ retention: { completedMs: DAY_MS } }), { events })
  expect((await ran).table).toBe('leasehold.sync_jobs')
  expect(await ids()).toEqual([])
})

it('chunks that no open job consists of are no longer needed; those of an open job are', async () => {
  const [dead, open] = [await makeJob(db, { matrix: 'dead' }), await makeJob(db, { matrix: 'open' })]
  await makeChunks(db, dead, 3, { matrix: 'dead' })
  await makeChunks(db, open, 2, { matrix: 'open' })
  await db.query({
    text: 'update leasehold.sync_jobs set failed_at = now(), locked_by = null, locked_until = null where id = $1',
    values: [dead],
  })
  expect(await applyRetention(db, { batch: 2 })).toMatchObject({ unneeded: 3 })
  const { rows } = await db.query({
    text: 'select matrix_id, count(*)::int as n from leasehold.sync_checkpoints where needed group by 1',
  })
  expect(rows).toEqual([{ matrix_id: 'open', n: 2 }])
})
