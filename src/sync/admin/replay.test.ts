import { Client } from 'pg'
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { chunkStates, emptySync, jobStates, makeChunks, makeJob } from '../../../test/support/sync-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import { createSync } from '../sync.ts'
import { cancel } from './cancel.ts'
import { progress } from './progress.ts'
import { replay, resumeReplay } from './replay.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
const start = useRuntimes(database.url)
afterAll(async () => db.close())
beforeEach(async () => emptySync(db))

const WHO = { principal: 'ada', reason: 'the source is back' }

it('only chunks that failed or were dropped are synced once more, as if they had never been tried; the job is open', async () => {
  const jobId = await makeJob(db, { state: 'failed', error: '2 chunks failed' })
  await makeChunks(db, jobId, 2, { state: 'done' })
  await makeChunks(db, jobId, 2, { from: 3, state: 'failed', error: 'HTTP 500', attempts: 5 })
  await makeChunks(db, jobId, 1, { from: 5, state: 'dropped', attempts: 2, error: 'HTTP 502' })
  await makeChunks(db, jobId, 1, { from: 6, state: 'skipped' })
  await db.query({ text: 'update leasehold.sync_jobs set expiries = 3' })
  await db.query({ text: 'update leasehold.sync_checkpoints set expiries = 4 where failed_at is not null' })
  const before = await chunkStates(db)
  expect(await replay(db, { ids: [jobId], ...WHO })).toMatchObject({
    matched: 1,
    changed: 1,
    counts: { failedChunks: 2, droppedChunks: 1, unplanned: 0, conflicting: 0 },
    skipped: [],
  })
  expect(await jobStates(db)).toEqual([
    { id: jobId, state: 'AVAILABLE', error: null, owner: null, attempts: 0 },
  ])
  expect(await chunkStates(db)).toEqual(
    before.map((chunk) => {
      if (chunk.state === 'FAILED') return { ...chunk, state: 'AVAILABLE', attempts: 0, error: null }
      return chunk.hash === 'c5' ? { ...chunk, needed: true } : chunk
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
      action: 'sync.replay',
      target: jobId,
      details: { reason: 'the source is back', counts: { failedChunks: 2, droppedChunks: 1 } },
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
  expect(await replay(db, { ids: [jobId], ...WHO })).toMatchObject({
    counts: { failedChunks: 2, droppedChunks: 0 },
  })
  await completed
  expect(done).toEqual(new Set([1, 2, 3, 4]))
  expect(calls).toBe(4)
  expect(await progress(db, jobId)).toMatchObject({
    phase: 'completed',
    chunks: { done: 4, failed: 0 },
    rows: 10,
  })
})

it('a cancelled job continues where it was', async () => {
  const jobId = await makeJob(db)
  await makeChunks(db, jobId, 3)
  await cancel(db, { ids: [jobId], ...WHO })
  expect(await replay(db, { ids: [jobId], ...WHO })).toMatchObject({
    counts: { failedChunks: 0, droppedChunks: 3 },
  })
  expect(await progress(db, jobId)).toMatchObject({ phase: 'syncing', chunks: { waiting: 3, dropped: 0 } })
})

it('a job that failed before its chunks were known is planned once more', async () => {
  const jobId = await makeJob(db, { planned: false, state: 'failed', error: 'no plan' })
  await db.query({ text: 'update leasehold.sync_jobs set attempts = 10' })
  expect(await replay(db, { ids: [jobId], ...WHO })).toMatchObject({
    counts: { unplanned: 1, failedChunks: 0 },
  })
  expect(await jobStates(db)).toMatchObject([{ state: 'AVAILABLE', attempts: 0 }])
})

describe('a replay changes nothing, and says why,', () => {
  it('while another job of the matrix is open, unless that job is a parallel one', async () => {
    const jobId = await makeJob(db, { state: 'failed' })
    await makeChunks(db, jobId, 1, { state: 'failed' })
    await makeJob(db, { parallel: true })
    await makeJob(db, { matrix: 'another' })
    const other = await makeJob(db)
    const before = [await jobStates(db), await chunkStates(db)]
    expect(await replay(db, { ids: [jobId], ...WHO })).toMatchObject({
      matched: 0,
      changed: 0,
      counts: { conflicting: 1 },
      skipped: [
        { id: jobId, why: expect.stringMatching(new RegExp(`job ${other} of the same matrix, m, is open`)) },
      ],
    })
    expect([await jobStates(db), await chunkStates(db)]).toEqual(before)
    await cancel(db, { ids: [other], ...WHO })
    expect(await replay(db, { ids: [jobId], ...WHO })).toMatchObject({
      changed: 1,
      counts: { failedChunks: 1 },
    })
  })

  it('while another job of the matrix is being written', async () => {
    const jobId = await makeJob(db, { state: 'failed' })
    const client = new Client({ connectionString: database.url })
    await client.connect()
    onTestFinished(async () => client.end())
    await client.query('begin')
    await client.query("insert into leasehold.sync_jobs (definition, matrix_id) values ('numbers', 'm')")
    const replaying = replay(db, { ids: [jobId], ...WHO })
    const waiting =
      "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    await expect.poll(async () => (await db.query({ text: waiting })).rowCount, { timeout: 120_000 }).toBe(1)
    await client.query('commit')
    expect(await replaying).toMatchObject({ matched: 1, changed: 0, changeId: undefined })
    expect(await jobStates(db)).toMatchObject([{ state: 'FAILED' }, { state: 'AVAILABLE' }])
    expect(await auditEntries(db)).toEqual([])
  })

  it.each([
    ['of a completed job', { state: 'completed' }, /is completed; .*enqueue a job with force/],
    ['of an open job', {}, /is open \(syncing\), and has not failed/],
  ] as const)('%s', async (_, made, why) => {
    const jobId = await makeJob(db, made)
    expect(await replay(db, { ids: [jobId, '99'], ...WHO })).toMatchObject({
      matched: 0,
      changed: 0,
      skipped: [
        { id: jobId, why: expect.stringMatching(why) },
        { id: '99', why: 'there is no such job' },
      ],
    })
  })

  it('of jobs that have not failed', async () => {
    await expect(replay(db, { filter: { states: ['RUNNING'] }, ...WHO })).rejects.toThrow(
      /states is "RUNNING".*Only FAILED jobs/,
    )
  })
})

describe('of named jobs that rule each other out,', () => {
  const named = ['1', '2', '3', '4']
  beforeEach(async () => {
    for (const agoMs of [30_000, 60_000, 10_000]) {
      const jobId = await makeJob(db, { state: 'failed', endedAgoMs: agoMs })
      await makeChunks(db, jobId, 2, { from: Number(jobId) * 10, state: 'failed' })
    }
    await makeJob(db, { matrix: 'another', state: 'failed' })
  })

  it('a replay names those that were not replayed, and why', async () => {
    const why = expect.stringMatching(
      /^job 2 of the same matrix, m, is open; wait for its end, or cancel it$/,
    )
    expect(await replay(db, { ids: named, ...WHO })).toMatchObject({
      matched: 2,
      changed: 2,
      counts: { conflicting: 2 },
      skipped: [
        { id: '1', why },
        { id: '3', why },
      ],
    })
    expect((await jobStates(db)).map(({ state }) => state)).toEqual([
      'FAILED',
      'AVAILABLE',
      'FAILED',
      'AVAILABLE',
    ])
  })

  it('a dry run names those that would not be replayed', async () => {
    const why = 'another job of the same matrix is replayed'
    expect(await replay(db, { ids: named, dryRun: true })).toMatchObject({
      matched: 2,
      skipped: [
        { id: '1', why },
        { id: '3', why },
      ],
    })
  })

  it('a replay that is resumed names them too, and none that was replayed before', async () => {
    const controller = new AbortController()
    const stopped = await replay(db, {
      ids: named,
      ...WHO,
      signal: controller.signal,
      onProgress: () => controller.abort(),
    })
    // What was not reached yet is not reported: it is replayed when the change is resumed.
    expect(stopped).toMatchObject({ changed: 1, finished: false, skipped: [{ id: '1' }, { id: '3' }] })
    const resumed = await resumeReplay(db, stopped.changeId ?? '', { principal: 'grace' })
    expect(resumed).toMatchObject({ changed: 1, finished: true, skipped: [{ id: '1' }, { id: '3' }] })
  })
})

describe('a dry run reports the chunks that would be synced', () => {
  beforeEach(async () => {
    for (const matrix of ['a', 'b']) {
      const jobId = await makeJob(db, {
        matrix,
        state: 'failed',
        endedAgoMs: matrix === 'a' ? 60_000 : 30_000,
      })
      await makeChunks(db, jobId, 3, { matrix, state: 'failed' })
      await makeChunks(db, jobId, 2, { matrix, from: 4, state: 'dropped' })
      await makeChunks(db, jobId, 1, { matrix, from: 6, state: 'done' })
    }
    // Not replayed, because another job of its matrix is: its chunks do not count.
    const conflicting = await makeJob(db, { matrix: 'a', state: 'failed' })
    await makeChunks(db, conflicting, 7, { matrix: 'a', from: 10, state: 'failed' })
    await makeJob(db, { matrix: 'c', state: 'failed', planned: false })
  })

  it.each([
    ['all that match', {}],
    ['as many as the limit allows', { limit: 1 }],
  ])('of %s, exactly as the replay then does', async (_, options) => {
    const filter = { states: ['FAILED'] } as const
    const before = [await jobStates(db), await chunkStates(db)]
    const dry = await replay(db, { filter, dryRun: true, ...options })
    expect([await jobStates(db), await chunkStates(db)]).toEqual(before)
    const done = await replay(db, { filter, ...WHO, ...options })
    expect(done.counts).toMatchObject(
      'limit' in options
        ? { failedChunks: 3, droppedChunks: 2, unplanned: 0 }
        : { failedChunks: 6, droppedChunks: 4, unplanned: 1 },
    )
    expect(dry.counts).toEqual(done.counts)
  })
})

describe('many failed jobs by filter', () => {
  beforeEach(async () => {
    for (const matrix of ['a', 'b', 'c', 'd']) {
      const jobId = await makeJob(db, { matrix, state: 'failed', error: 'HTTP 500', endedAgoMs: 60_000 })
      await makeChunks(db, jobId, 2, { matrix, state: 'failed' })
    }
    await makeJob(db, { matrix: 'a', state: 'failed', error: 'HTTP 500' })
    await makeJob(db, { matrix: 'e', state: 'failed', error: 'no plan', endedAgoMs: 7_200_000 })
  })
  const filter = { error: 'http' }

  it('a dry run counts exactly those that can be open together; the replay opens just them', async () => {
    const counted = { matched: 4, counts: { conflicting: 1 } }
    expect(await replay(db, { filter, dryRun: true })).toMatchObject({ ...counted, changed: 0 })
    expect(await replay(db, { filter, ...WHO })).toMatchObject({
      matched: 4,
      changed: 4,
      counts: { conflicting: 1, failedChunks: 8 },
    })
    expect((await jobStates(db)).map(({ state }) => state)).toEqual([
      'AVAILABLE',
      'AVAILABLE',
      'AVAILABLE',
      'AVAILABLE',
      'FAILED',
      'FAILED',
    ])
  })

  it('only those that failed since a time, if one is given', async () => {
    const failedSince = new Date(Date.now() - 30_000)
    expect(await replay(db, { filter: { failedSince }, ...WHO })).toMatchObject({
      changed: 1,
      firstId: '5',
    })
  })

  it('a rate gives each job and its chunks a time of their own', async () => {
    await replay(db, { filter, rate: 0.1, ...WHO })
    const { rows } = await db.query<{ apart: boolean; together: boolean }>({
      text: `select bool_and(j.next_check_at >= first.at + (j.id - 1) * interval '10 seconds') as apart,
  bool_and(c.next_attempt_at = j.next_check_at) as together
from leasehold.sync_jobs as j join leasehold.sync_checkpoints as c using (matrix_id),
  (select min(next_check_at) as at from leasehold.sync_jobs where failed_at is null) as first
where j.failed_at is null`,
    })
    expect(rows).toEqual([{ apart: true, together: true }])
  })

  it('a stopped replay leaves the rest as it was; resumed, it replays the rest and no job twice', async () => {
    const controller = new AbortController()
    const stopped = await replay(db, {
      filter,
      ...WHO,
      signal: controller.signal,
      onProgress: ({ changed }) => {
        if (changed === 2) controller.abort()
      },
    })
    expect(stopped).toMatchObject({ changed: 2, finished: false })
    // What was replayed fails once more in between; no other job of its matrix has failed.
    await db.query({ text: 'delete from leasehold.sync_jobs where id = 5' })
    await db.query({ text: 'update leasehold.sync_jobs set failed_at = now() where failed_at is null' })
    expect(await resumeReplay(db, stopped.changeId ?? '', { principal: 'grace' })).toMatchObject({
      changed: 2,
      changedBefore: 2,
      finished: true,
    })
    expect((await jobStates(db)).map(({ state }) => state)).toEqual([
      'FAILED',
      'FAILED',
      'AVAILABLE',
      'AVAILABLE',
      'FAILED',
    ])
    expect((await auditEntries(db)).at(-1)).toMatchObject({
      principal: 'grace',
      details: { changed: 4, reason: WHO.reason, finishedAtSeconds: expect.any(Number) },
    })
  })
})
