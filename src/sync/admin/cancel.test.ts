import { Client } from 'pg'
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import {
  chunkStates,
  emptySync,
  jobStates,
  makeChunks,
  makeJob,
  shareChunks,
} from '../../../test/support/sync-rows.ts'
import { openLeaseStore } from '../../lease/store.ts'
import { openDatabase } from '../../postgres/database.ts'
import { createSync } from '../sync.ts'
import { chunkTable, jobTable } from '../table.ts'
import { cancel, type CancelOptions, resumeCancel } from './cancel.ts'
import { writeChunks } from '../sql.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
const start = useRuntimes(database.url)
afterAll(async () => db.close())
beforeEach(async () => emptySync(db))

const WHO = { principal: 'ada', reason: 'the wrong matrix' }

it('an open job has failed, with who and why, and its chunks are no longer needed; what was synced stays', async () => {
  const jobId = await makeJob(db)
  await makeChunks(db, jobId, 2, { state: 'done' })
  await makeChunks(db, jobId, 3, { from: 3 })
  await makeChunks(db, jobId, 1, { from: 6, state: 'failed', error: 'HTTP 500' })
  await makeChunks(db, jobId, 1, { from: 7, state: 'running', owner: 'x' })
  const before = await chunkStates(db)
  expect(await cancel(db, { ids: [jobId], ...WHO })).toMatchObject({
    matched: 1,
    changed: 1,
    counts: { droppedChunks: 4, inFlight: 1 },
    finished: true,
    skipped: [],
  })
  expect(await jobStates(db)).toEqual([
    { id: jobId, state: 'FAILED', error: 'cancelled by ada: the wrong matrix', owner: null, attempts: 0 },
  ])
  const open = new Set(['c3', 'c4', 'c5', 'c7'])
  // The one in flight keeps its lease: it is finished.
  expect(await chunkStates(db)).toEqual(
    before.map((chunk) => (open.has(chunk.hash) ? { ...chunk, needed: false } : chunk)),
  )
  expect(await auditEntries(db)).toMatchObject([
    {
      principal: 'ada',
      action: 'sync.cancel',
      target: jobId,
      details: { reason: 'the wrong matrix', changed: 1, counts: { droppedChunks: 4, inFlight: 1 } },
    },
  ])
})

it('a chunk in flight can be settled after the cancel; dropped ones are claimed by nobody', async () => {
  const jobId = await makeJob(db)
  await makeChunks(db, jobId, 2)
  const store = await openLeaseStore(db, chunkTable(), { owner: 'w' })
  const groups = [{ group: 'numbers', room: 1 }]
  const { claimed } = await store.claim({ limit: 1, leaseMs: 60_000, groups })
  await cancel(db, { ids: [jobId], ...WHO })
  expect((await store.claim({ limit: 10, leaseMs: 60_000, groups })).claimed).toEqual([])
  const leases = claimed.map(({ lease }) => lease)
  expect((await store.settle('done', leases, { args: [{ rows: 7 }] })).fencedOff).toEqual([])
  expect((await chunkStates(db)).map(({ state }) => state)).toEqual(['COMPLETED', 'AVAILABLE'])
})

describe('a job that somebody holds', () => {
  it('a job in flight is cancelled too, and its holder can neither settle, release nor renew', async () => {
    const jobId = await makeJob(db, { planned: false })
    const store = await openLeaseStore(db, jobTable(), { owner: 'w' })
    const groups = [{ group: 'numbers', room: 1 }]
    const { claimed } = await store.claim({ limit: 1, leaseMs: 60_000, groups })
    const leases = claimed.map(({ lease }) => lease)
    expect(leases).toHaveLength(1)
    await cancel(db, { ids: [jobId], ...WHO })
    const cancelled = await jobStates(db)
    expect((await store.renew(leases, 60_000)).lost).toEqual(leases)
    expect((await store.settle('planned', leases)).fencedOff).toEqual(leases)
    expect((await store.release(leases)).fencedOff).toEqual(leases)
    expect(await jobStates(db)).toEqual(cancelled)
    expect(cancelled).toMatchObject([{ state: 'FAILED', owner: null }])
  })

  it('a cancelled job gets no more chunks from the plan that is being written', async () => {
    const jobId = await makeJob(db, { planned: false, owner: 'w' })
    const held = { id: jobId, owner: 'w', token: 1n }
    const chunk = (n: number) => ({ hash: `c${n}`, query: '{}', position: n })
    await db.query(writeChunks('leasehold', held, [chunk(1)]))
    await cancel(db, { ids: [jobId], ...WHO })
    await db.query(writeChunks('leasehold', held, [chunk(2)]))
    expect(await chunkStates(db)).toMatchObject([{ hash: 'c1', needed: false }])
  })

  it('in a running runner: the planner is fenced off, and none of what it planned is done', async () => {
    const sync = createSync()
    let planning: (value: unknown) => void = () => undefined
    const planned = new Promise((resolve) => (planning = resolve))
    let goOn: (value: unknown) => void = () => undefined
    const cancelled = new Promise((resolve) => (goOn = resolve))
    const done: unknown[] = []
    const numbers = sync.define<number>('numbers', {
      plan: async () => {
        planning(true)
        await cancelled
        return [1, 2, 3]
      },
      syncChunk: async ({ query }) => Promise.resolve(void done.push(query)),
    })
    const { events } = await start(sync.runner({ checkEveryMs: 20 }))
    const fencedOff = events.next('fencedOff', ({ table }) => table.endsWith('sync_jobs'))
    const { jobId } = await numbers.enqueue(db, { matrixId: 'm' })
    await planned
    await cancel(db, { ids: [jobId], ...WHO })
    goOn(true)
    await fencedOff
    expect(await jobStates(db)).toMatchObject([
      { state: 'FAILED', error: 'cancelled by ada: the wrong matrix' },
    ])
    expect(await chunkStates(db)).toEqual([])
    expect(done).toEqual([])
    // Another job of the matrix can be enqueued.
    expect(await numbers.enqueue(db, { matrixId: 'm' })).toMatchObject({ created: true })
  })
})

describe('another open job that wants the same chunks', () => {
  it('another open job that wants the same chunks retains them', async () => {
    const jobId = await makeJob(db)
    await makeChunks(db, jobId, 2)
    await shareChunks(db, await makeJob(db, { parallel: true }), jobId)
    expect(await cancel(db, { ids: [jobId], ...WHO })).toMatchObject({ counts: { droppedChunks: 0 } })
    expect((await chunkStates(db)).map(({ needed }) => needed)).toEqual([true, true])
  })

  it('another open job retains its chunks also when its plan is being written at this moment', async () => {
    const jobId = await makeJob(db)
    await makeChunks(db, jobId, 2)
    const other = await makeJob(db, { parallel: true, planned: false, owner: 'w' })
    const client = new Client({ connectionString: database.url })
    await client.connect()
    onTestFinished(async () => client.end())
    const chunk = { hash: 'c2', query: '{}', position: 1 }
    const { text, values = [] } = writeChunks('leasehold', { id: other, owner: 'w', token: 1n }, [chunk])
    await client.query('begin')
    await client.query(text, [...values])
    const cancelling = cancel(db, { ids: [jobId], ...WHO })
    await expect.poll(async () => waitingForLocks(), { timeout: 120_000 }).toBe(1)
    await client.query('commit')
    expect(await cancelling).toMatchObject({ counts: { droppedChunks: 1 } })
    expect((await chunkStates(db)).map(({ hash, needed }) => [hash, needed])).toEqual([
      ['c1', false],
      ['c2', true],
    ])
  })
})

async function waitingForLocks(): Promise<number | null> {
  const text = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
  return (await db.query({ text })).rowCount
}

it('a cancel succeeds against a worker that settles the same chunks in another order', async () => {
  const jobId = await makeJob(db)
  await makeChunks(db, jobId, 2, { state: 'running' })
  const client = new Client({ connectionString: database.url })
  await client.connect()
  onTestFinished(async () => client.end())
  const touch = async (hash: string): Promise<unknown> =>
    client.query(
      "update leasehold.sync_checkpoints set locked_until = now() + interval '1 hour' where chunk_hash = $1",
      [hash],
    )
  await client.query('begin')
  await touch('c2')
  const cancelling = cancel(db, { ids: [jobId], ...WHO })
  await expect.poll(async () => waitingForLocks(), { timeout: 120_000 }).toBe(1)
  // PostgreSQL ends one of the two: either is fine, and the cancel is made in the end.
  await touch('c1').catch(() => undefined)
  await client.query('commit')
  expect(await cancelling).toMatchObject({ counts: { droppedChunks: 2 } })
})

describe('a cancel changes nothing, and says why,', () => {
  it.each([
    ['of a completed job', { state: 'completed' }, 'it has completed already'],
    ['of a failed job', { state: 'failed', error: 'no way' }, 'it has failed already: no way'],
  ] as const)('%s', async (_, made, why) => {
    const jobId = await makeJob(db, made)
    const before = await jobStates(db)
    expect(await cancel(db, { ids: [jobId, '99'], ...WHO })).toMatchObject({
      matched: 0,
      changed: 0,
      skipped: [
        { id: jobId, why },
        { id: '99', why: 'there is no such job' },
      ],
    })
    expect(await jobStates(db)).toEqual(before)
    expect(await auditEntries(db)).toEqual([])
  })

  it.each<[string, CancelOptions, RegExp]>([
    ['of what is no job', { ids: ['x'] }, /id is "x"/],
    ['without a reason', { reason: ' ' }, /reason is " "/],
    ['without a principal', { principal: '' }, /principal is "".*Say who/],
    ['of all jobs at once', { ids: undefined }, /filter is \{\}.*Give ids/],
    ['of failed jobs', { filter: { states: ['FAILED'] } }, /states is "FAILED".*Only open jobs/],
    [
      'of jobs that failed since',
      { filter: { failedSince: new Date() } },
      /failedSince is .*Only open|only open/,
    ],
  ])('%s', async (_, wrong, message) => {
    const jobId = await makeJob(db)
    const refused = cancel(db, { ids: [jobId], ...WHO, ...wrong })
    await expect(refused).rejects.toMatchObject({
      code: 'REQUEST_INVALID',
      message: expect.stringMatching(message),
    })
    expect(await jobStates(db)).toMatchObject([{ state: 'AVAILABLE' }])
  })
})

describe('many jobs by filter', () => {
  beforeEach(async () => {
    for (const matrix of ['a', 'b', 'c', 'd']) {
      const jobId = await makeJob(db, { matrix })
      await makeChunks(db, jobId, 2, { matrix })
    }
    await makeJob(db, { matrix: 'other', definition: 'letters' })
  })
  const filter = { definition: 'numbers' }

  it('a dry run counts them and changes nothing; each cancelled job has its entry in the audit', async () => {
    expect(await cancel(db, { filter, dryRun: true })).toMatchObject({ matched: 4, changed: 0 })
    expect((await jobStates(db)).every(({ state }) => state === 'AVAILABLE')).toBe(true)
    expect(await cancel(db, { filter, ...WHO })).toMatchObject({
      matched: 4,
      changed: 4,
      counts: { droppedChunks: 8, inFlight: 0 },
    })
    expect((await jobStates(db)).map(({ state }) => state)).toEqual([
      'FAILED',
      'FAILED',
      'FAILED',
      'FAILED',
      'AVAILABLE',
    ])
    expect((await auditEntries(db)).map(({ details }) => details['changed'])).toEqual([1, 2, 3, 4, 4])
  })

  it('a dry run counts the chunks that would be dropped, and those of them in flight', async () => {
    await makeChunks(db, '1', 1, { matrix: 'a', from: 3, state: 'running' })
    // A job that is not cancelled needs the chunks of one that is; two that are cancelled share theirs.
    await shareChunks(db, await makeJob(db, { matrix: 'b', definition: 'letters' }), '2')
    await shareChunks(db, await makeJob(db, { matrix: 'c', parallel: true }), '3')
    const dry = await cancel(db, { filter, dryRun: true })
    const done = await cancel(db, { filter, ...WHO })
    expect(done).toMatchObject({ changed: 5, counts: { droppedChunks: 7, inFlight: 1 } })
    expect(dry.counts).toEqual(done.counts)
  })

  it('a cancel that is stopped can be resumed: the rest is cancelled, at the same rate and for the same reason', async () => {
    const controller = new AbortController()
    const stopped = await cancel(db, {
      filter,
      rate: 1_000,
      ...WHO,
      signal: controller.signal,
      onProgress: ({ changed }) => {
        if (changed === 2) controller.abort()
      },
    })
    expect(stopped).toMatchObject({ changed: 2, finished: false })
    expect(await resumeCancel(db, stopped.changeId ?? '', { principal: 'grace' })).toMatchObject({
      changed: 2,
      changedBefore: 2,
      counts: { droppedChunks: 8 },
      finished: true,
    })
    expect((await jobStates(db)).map(({ error }) => error)).toEqual([
      'cancelled by ada: the wrong matrix',
      'cancelled by ada: the wrong matrix',
      'cancelled by grace: the wrong matrix',
      'cancelled by grace: the wrong matrix',
      null,
    ])
  })
})
