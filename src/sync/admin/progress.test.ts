import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { emptySync, makeChunks, makeJob, shareChunks } from '../../../test/support/sync-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import { listChunks } from './chunks.ts'
import { listJobs } from './jobs.ts'
import { progress, progressOfAll } from './progress.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())
beforeEach(async () => emptySync(db))

const NO_CHUNKS = {
  total: 0,
  done: 0,
  skipped: 0,
  running: 0,
  waiting: 0,
  retrying: 0,
  failed: 0,
  dropped: 0,
}

/** A job with chunks in every state. */
async function mixed(): Promise<string> {
  const jobId = await makeJob(db, { agoMs: 120_000 })
  await makeChunks(db, jobId, 20, { state: 'done', rows: 30, agoMs: 10_000 })
  await makeChunks(db, jobId, 10, { state: 'skipped', rows: 1_000, agoMs: 600_000, from: 21 })
  await makeChunks(db, jobId, 2, { state: 'running', owner: 'host-2', from: 31 })
  await makeChunks(db, jobId, 1, { state: 'running', owner: 'host-1', from: 33 })
  await makeChunks(db, jobId, 3, { from: 34 })
  await makeChunks(db, jobId, 2, { attempts: 2, error: 'HTTP 429', from: 37 })
  await makeChunks(db, jobId, 2, { state: 'expired', from: 39 })
  await makeChunks(db, jobId, 12, { state: 'failed', attempts: 5, error: 'HTTP 500', from: 41 })
  await makeChunks(db, jobId, 4, { state: 'dropped', from: 53 })
  return jobId
}

describe('progress', () => {
  it('progress counts every chunk once, adds up the rows, and has the pace, the remaining time, who works on what and what failed', async () => {
    const jobId = await mixed()
    const found = await progress(db, jobId)
    expect(found).toMatchObject({
      id: jobId,
      definition: 'numbers',
      matrixId: 'm',
      state: 'AVAILABLE',
      phase: 'syncing',
      chunks: {
        total: 56,
        done: 20,
        skipped: 10,
        running: 3,
        waiting: 7,
        retrying: 2,
        failed: 12,
        dropped: 4,
      },
      rows: 600,
      chunksPerMinute: 20,
      rowsPerSecond: 10,
      // Ten are open.
      timeLeftMs: 30_000,
    })
    expect(found.working.map(({ lockedBy, hash, query }) => [lockedBy, hash, query])).toEqual([
      ['host-1', 'c33', { n: 33 }],
      ['host-2', 'c31', { n: 31 }],
      ['host-2', 'c32', { n: 32 }],
    ])
    expect(found.failures).toHaveLength(10)
    expect(found.failures[0]).toMatchObject({ hash: 'c41', attempts: 5, errorMessage: 'HTTP 500' })
  })

  it.each([
    ['waiting', { planned: false }],
    ['planning', { planned: false, owner: 'w' }],
    ['syncing', {}],
    ['completed', { state: 'completed' }],
    ['failed', { state: 'failed', error: 'x' }],
  ] as const)('a job without chunks that is %s', async (phase, made) => {
    const jobId = await makeJob(db, made)
    expect(await progress(db, jobId)).toMatchObject({
      phase,
      chunks: NO_CHUNKS,
      rows: 0,
      chunksPerMinute: undefined,
      rowsPerSecond: undefined,
      timeLeftMs: undefined,
      working: [],
      failures: [],
    })
  })

  it('the time left is unknown while chunks are being planned', async () => {
    const jobId = await makeJob(db, { planned: false, owner: 'w', agoMs: 60_000 })
    await makeChunks(db, jobId, 20, { state: 'done', agoMs: 1_000 })
    await makeChunks(db, jobId, 20, { from: 21 })
    expect(await progress(db, jobId)).toMatchObject({ chunksPerMinute: 20, timeLeftMs: undefined })
  })

  it('what was synced for another job before says nothing of the pace of this one', async () => {
    const jobId = await makeJob(db, { agoMs: 30_000 })
    await makeChunks(db, jobId, 20, { state: 'done', agoMs: 40_000 })
    await makeChunks(db, jobId, 1, { from: 21 })
    expect(await progress(db, jobId)).toMatchObject({ chunksPerMinute: undefined, timeLeftMs: undefined })
  })

  it('a completed job stays whole when a later one takes up its chunks', async () => {
    const jobId = await makeJob(db, { state: 'completed', agoMs: 60_000 })
    await makeChunks(db, jobId, 3, { state: 'waiting' })
    await makeChunks(db, jobId, 1, { state: 'skipped', from: 4 })
    await shareChunks(db, await makeJob(db), jobId)
    const chunks = { ...NO_CHUNKS, total: 4, done: 3, skipped: 1 }
    expect(await progress(db, jobId)).toMatchObject({ phase: 'completed', chunks })
    expect((await listJobs(db, { states: ['COMPLETED'] })).jobs).toMatchObject([{ id: jobId, chunks }])
  })

  it('chunks of other jobs and matrices do not count', async () => {
    const jobId = await makeJob(db)
    await makeChunks(db, jobId, 2)
    await makeChunks(db, await makeJob(db, { matrix: 'n' }), 5, { matrix: 'n' })
    await makeChunks(db, await makeJob(db, { parallel: true }), 3, { from: 10 })
    expect(await progress(db, jobId)).toMatchObject({ chunks: { total: 2, waiting: 2 } })
  })

  it('an unknown job is an error that says what to do', async () => {
    await expect(progress(db, '99')).rejects.toMatchObject({
      code: 'JOB_NOT_FOUND',
      message: expect.stringContaining('`leasehold sync list`'),
    })
    await expect(progress(db, 'x')).rejects.toMatchObject({ code: 'REQUEST_INVALID' })
  })

  it('progress of all jobs has open jobs in the order of their turn, then those that failed lately', async () => {
    const low = await makeJob(db, { matrix: 'a', priority: -1, agoMs: 5_000 })
    const later = await makeJob(db, { matrix: 'b', agoMs: 1_000 })
    const sooner = await makeJob(db, { matrix: 'c', agoMs: 2_000 })
    await makeJob(db, { matrix: 'd', state: 'completed' })
    await makeJob(db, { matrix: 'e', state: 'failed', endedAgoMs: 2 * 86_400_000 })
    const failed = await makeJob(db, { matrix: 'f', state: 'failed' })
    const { jobs, more } = await progressOfAll(db)
    expect(jobs.map(({ id }) => id)).toEqual([sooner, later, low, failed])
    expect(more).toBe(false)
    expect(await progressOfAll(db, { limit: 2, failedWithinMs: 0 })).toMatchObject({
      jobs: [{ id: sooner }, { id: later }],
      more: true,
    })
  })
})

describe('listJobs', () => {
  it('listJobs returns the newest jobs first, with their chunks, page by page', async () => {
    const ids = [
      await mixed(),
      await makeJob(db, { matrix: 'n', state: 'completed' }),
      await makeJob(db, { matrix: 'o', planned: false }),
    ]
    const { jobs, next } = await listJobs(db, {}, { limit: 2 })
    expect(jobs.map(({ id, phase, chunks }) => [id, phase, chunks.total])).toEqual([
      [ids[2], 'waiting', 0],
      [ids[1], 'completed', 0],
    ])
    const rest = await listJobs(db, {}, { limit: 2, before: next ?? '' })
    expect(rest).toMatchObject({
      jobs: [{ id: ids[0], chunks: { done: 20, failed: 12, running: 3 } }],
      next: null,
    })
  })

  it('listJobs filters by definition, matrix and state', async () => {
    await makeJob(db, { definition: 'a', matrix: 'x' })
    await makeJob(db, { definition: 'b', matrix: 'x', owner: 'w' })
    await makeJob(db, { definition: 'b', matrix: 'y', state: 'failed' })
    const found = async (filter: Parameters<typeof listJobs>[1]): Promise<string[]> =>
      (await listJobs(db, filter)).jobs.map(({ id }) => id)
    expect(await found({ definition: 'b' })).toEqual(['3', '2'])
    expect(await found({ matrixId: 'x' })).toEqual(['2', '1'])
    expect(await found({ matrixId: 'x', definition: 'b' })).toEqual(['2'])
    expect(await found({ states: ['RUNNING', 'FAILED'] })).toEqual(['3', '2'])
    expect(await found({ states: ['AVAILABLE'] })).toEqual(['1'])
  })

  it.each([
    [{ states: [] }, {}, /states is \[\]/],
    [{ definition: '' }, {}, /definition is ""/],
    [{}, { limit: 0 }, /limit is 0/],
    [{}, { before: 'x' }, /before is "x"/],
  ])('listJobs refuses %j, %j', async (filter, options, message) => {
    await expect(listJobs(db, filter, options)).rejects.toThrow(message)
  })
})

describe('listChunks', () => {
  it('in the order of the plan, by state, page by page', async () => {
    const jobId = await mixed()
    const first = await listChunks(db, jobId, { limit: 8, states: ['FAILED'] })
    expect(first.chunks.map(({ hash }) => hash)).toEqual([
      'c41',
      'c42',
      'c43',
      'c44',
      'c45',
      'c46',
      'c47',
      'c48',
    ])
    expect(first.next).toBe('c48')
    const rest = await listChunks(db, jobId, { limit: 8, states: ['FAILED'], after: 'c48' })
    expect(rest).toMatchObject({ chunks: [{ hash: 'c49' }, {}, {}, { hash: 'c52' }], next: null })
    expect((await listChunks(db, jobId, { states: ['RUNNING', 'EXPIRED'] })).chunks).toMatchObject([
      { hash: 'c31', state: 'RUNNING', lockedBy: 'host-2', token: 1n },
      { hash: 'c32' },
      { hash: 'c33' },
      { hash: 'c39', state: 'EXPIRED' },
      { hash: 'c40' },
    ])
    expect((await listChunks(db, jobId)).chunks).toHaveLength(50)
  })

  it('listChunks of an unknown job is an error', async () => {
    await expect(listChunks(db, '99')).rejects.toMatchObject({ code: 'JOB_NOT_FOUND' })
  })
})
