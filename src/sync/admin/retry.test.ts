import { Client } from 'pg'
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { chunkStates, emptySync, jobStates, makeChunks, makeJob } from '../../../test/support/sync-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import { createSync } from '../sync.ts'
import { cancelJob } from './cancel.ts'
import { progress } from './progress.ts'
import { retryFailed } from './retry.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
const start = useRuntimes(database.url)
afterAll(async () => db.close())
beforeEach(async () => emptySync(db))

const WHO = { principal: 'ada', reason: 'the source is back' }

it('only what has failed or was dropped is done once more, as if it had never been tried; the job is open', async () => {
  const jobId = await makeJob(db, { state: 'failed', error: '2 chunks failed' })
  await makeChunks(db, jobId, 2, { state: 'done' })
  await makeChunks(db, jobId, 2, { from: 3, state: 'failed', error: 'HTTP 500', attempts: 5 })
  await makeChunks(db, jobId, 1, { from: 5, state: 'dropped', attempts: 2, error: 'HTTP 502' })
  await makeChunks(db, jobId, 1, { from: 6, state: 'skipped' })
  await db.query({ text: 'update leasehold.sync_jobs set expiries = 3' })
  await db.query({ text: 'update leasehold.sync_checkpoints set expiries = 4 where failed_at is not null' })
  const before = await chunkStates(db)
  expect(await retryFailed(db, { jobId, ...WHO })).toEqual({ jobId, failed: 2, dropped: 1, planned: false })
  expect(await jobStates(db)).toEqual([
    { id: jobId, state: 'AVAILABLE', error: null, owner: null, attempts: 0 },
  ])
  expect(await chunkStates(db)).toEqual(
    before.map((chunk) => {
      if (chunk.state === 'FAILED') return { ...chunk, state: 'AVAILABLE', attempts: 0, error: null }
      return chunk.hash === 'c5' ? { ...chunk, wanted: true } : chunk
    }),
  )
  const { rows } = await db.query({
    text: `select next_check_at <= now() and expiries = 0 as due from leasehold.sync_jobs
      union all select next_attempt_at <= now() and expiries = 0 from leasehold.sync_checkpoints`,
  })
  expect(rows.every((row) => 'due' in row && row.due === true)).toBe(true)
  expect(await auditEntries(db)).toMatchObject([
    {
      principal: 'ada',
      action: 'sync.retry',
      target: jobId,
      details: { reason: 'the source is back', failed: 2, dropped: 1, errorMessage: '2 chunks failed' },
    },
  ])
})

it('a running runner hears of it, does the failed chunks, none of the others, and completes the job', async () => {
  const sync = createSync()
  let broken = true
  const done = new Set<number>()
  let calls = 0
  const numbers = sync.define<number>('numbers', {
    plan: () => [1, 2, 3, 4],
    syncChunk: async ({ query }) => {
      if (broken && query % 2 === 0) throw new Error(`no ${query}`)
      calls += 1
      done.add(query)
      return Promise.resolve({ rows: query })
    },
    retry: { maxAttempts: 1 },
  })
  // Nobody polls: only what wakes them brings them back.
  const { events } = await start(
    sync.runner({ checkEveryMs: 20, jobs: { pollMs: 600_000 }, chunks: { pollMs: 600_000 } }),
  )
  const ended = async (outcome: string): Promise<unknown> =>
    events.next('settled', (event) => event.table.endsWith('sync_jobs') && event.outcome === outcome)
  const failed = ended('dead')
  const { jobId } = await numbers.enqueue(db, { matrixId: 'm' })
  await failed
  expect(await jobStates(db)).toMatchObject([
    { state: 'FAILED', error: expect.stringMatching(/^2 chunks failed/) },
  ])
  expect(done).toEqual(new Set([1, 3]))
  broken = false
  const completed = ended('done')
  expect(await retryFailed(db, { jobId, ...WHO })).toMatchObject({ failed: 2, dropped: 0 })
  await completed
  expect(done).toEqual(new Set([1, 2, 3, 4]))
  expect(calls).toBe(4)
  expect(await progress(db, jobId)).toMatchObject({
    phase: 'completed',
    chunks: { done: 4, failed: 0 },
    rows: 10,
  })
})

it('a cancelled job goes on where it was', async () => {
  const jobId = await makeJob(db)
  await makeChunks(db, jobId, 3)
  await cancelJob(db, { jobId, ...WHO })
  expect(await retryFailed(db, { jobId, ...WHO })).toMatchObject({ failed: 0, dropped: 3 })
  expect(await progress(db, jobId)).toMatchObject({ phase: 'syncing', chunks: { waiting: 3, dropped: 0 } })
})

it('one that failed before its chunks were known is planned again', async () => {
  const jobId = await makeJob(db, { planned: false, state: 'failed', error: 'no plan' })
  await db.query({ text: 'update leasehold.sync_jobs set attempts = 10' })
  expect(await retryFailed(db, { jobId, ...WHO })).toMatchObject({ planned: true, failed: 0 })
  expect(await jobStates(db)).toMatchObject([{ state: 'AVAILABLE', attempts: 0 }])
})

describe('a retry is refused, and changes nothing,', () => {
  it('while another job of the matrix is open; a parallel one is not in the way', async () => {
    const jobId = await makeJob(db, { state: 'failed' })
    await makeChunks(db, jobId, 1, { state: 'failed' })
    await makeJob(db, { parallel: true })
    await makeJob(db, { matrix: 'another' })
    const other = await makeJob(db)
    const before = [await jobStates(db), await chunkStates(db)]
    await expect(retryFailed(db, { jobId, ...WHO })).rejects.toMatchObject({
      code: 'JOB_CONFLICT',
      message: expect.stringMatching(new RegExp(`job ${other} of the same matrix, m, is open`)),
    })
    expect([await jobStates(db), await chunkStates(db)]).toEqual(before)
    await cancelJob(db, { jobId: other, ...WHO })
    expect(await retryFailed(db, { jobId, ...WHO })).toMatchObject({ failed: 1 })
  })

  it('while another job of the matrix is being written', async () => {
    const jobId = await makeJob(db, { state: 'failed' })
    const client = new Client({ connectionString: database.url })
    await client.connect()
    onTestFinished(async () => client.end())
    await client.query('begin')
    await client.query("insert into leasehold.sync_jobs (definition, matrix_id) values ('numbers', 'm')")
    const retrying = retryFailed(db, { jobId, ...WHO })
    const refused = retrying.catch((error: unknown) => error)
    const waiting =
      "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    await expect.poll(async () => (await db.query({ text: waiting })).rowCount, { timeout: 20_000 }).toBe(1)
    await client.query('commit')
    expect(await refused).toMatchObject({ code: 'JOB_CONFLICT' })
    expect(await jobStates(db)).toMatchObject([{ state: 'FAILED' }, { state: 'AVAILABLE' }])
  })

  it.each([
    [
      'of a completed job',
      { state: 'completed' },
      /is completed, and has not failed.*enqueue a job with force/,
    ],
    ['of an open job', {}, /is open \(syncing\), and has not failed/],
  ] as const)('%s', async (_, made, message) => {
    const jobId = await makeJob(db, made)
    const refused = retryFailed(db, { jobId, ...WHO })
    await expect(refused).rejects.toMatchObject({
      code: 'JOB_CONFLICT',
      message: expect.stringMatching(message),
    })
  })

  it('of an unknown job', async () => {
    await expect(retryFailed(db, { jobId: '99', ...WHO })).rejects.toMatchObject({ code: 'JOB_NOT_FOUND' })
  })
})
