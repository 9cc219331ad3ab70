import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { door, settled } from '../../../test/support/running-worker.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { codesOf, expectAllStaged, remembering, whenGiven } from '../../../test/support/staged-reasons.ts'
import { emptySync, syncChunks } from '../../../test/support/sync-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import { createSync } from '../sync.ts'
import { cancel } from './cancel.ts'
import * as explaining from './explain.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
const explainChunk = remembering(explaining.explainChunk)
const explainJob = remembering(explaining.explainJob)
const BOUND = { timeout: 120_000, interval: 20 }

beforeEach(async () => {
  await emptySync(db)
  await db.query({ text: 'truncate leasehold.workers' })
})
afterAll(async () => db.close())

it('a job that is planned waits for its chunks; one of them is leased, the others are claimable', async () => {
  const sync = createSync()
  const [begun, held] = [door(), door()]
  const slow = sync.define<number>('slow', {
    plan: () => [1, 2, 3],
    syncChunk: async () => {
      begun.open()
      await held.opened
      return { rows: 1 }
    },
    concurrency: 1,
  })
  const { jobId } = await slow.enqueue(db, { matrixId: 'm' })
  const { runtime } = await start(sync.runner({ checkEveryMs: 20 }), { presenceMs: 50 })
  await begun.opened
  const {
    text,
    by = '',
    command,
    since,
  } = await whenGiven(async () => explainJob(db, jobId), 'waitsForChunks')
  expect(text).toMatch(
    /^It was planned at .*Z \(\d s ago\), and waits for 3 chunks: 1 in flight, 2 waiting; 0 have failed\.$/,
  )
  expect({ command, isMoment: since instanceof Date }).toEqual({
    command: `leasehold sync explain ${jobId} ${by}`,
    isMoment: true,
  })
  expect(codesOf(await explainJob(db, jobId))).toEqual(['waitsForChunks'])
  expect(await whenGiven(async () => explainChunk(db, jobId, by), 'claimable')).toBeDefined()
  const leased = (await syncChunks(db)).find(({ state }) => state === 'RUNNING')
  const { text: held2 } = await whenGiven(
    async () => explainChunk(db, jobId, leased?.chunk_hash ?? ''),
    'leased',
  )
  expect(held2).toMatch(new RegExp(`^The worker process ${runtime.id} holds it, with token \\d+, `))
  held.open()
})

it('groupNotServed: no runner that is alive has the definition, of a job and of a chunk', async () => {
  const known = createSync()
  known.define('known', { plan: () => [], syncChunk: async () => ({ rows: 0 }) })
  const other = createSync()
  const unknown = other.define('unknown', { plan: () => [1], syncChunk: async () => ({ rows: 0 }) })
  const { jobId } = await unknown.enqueue(db, { matrixId: 'm' })
  const { runtime } = await start(known.runner({ checkEveryMs: 20 }), { presenceMs: 50 })
  const { text, by } = await whenGiven(async () => explainJob(db, jobId), 'groupNotServed')
  expect(text).toBe(`No worker process that is alive has the definition "unknown": ${runtime.id} has known.`)
  expect(by).toBe('unknown')
  expect(codesOf(await explainJob(db, jobId))).toEqual(['groupNotServed'])
  const second = await start(other.runner({ checkEveryMs: 20 }), { presenceMs: 50 })
  await settled(second.events, 1)
  await expect.poll(async () => codesOf(await explainJob(db, jobId)), BOUND).toEqual(['finished'])
})

it('sourceRateLimit: a chunk was postponed, because the source has no room', async () => {
  const sync = createSync()
  const limited = sync.define<number>('limited', {
    plan: () => [1, 2, 3],
    syncChunk: async () => ({ rows: 1 }),
    source: { name: 'crm', perSecond: 0.001 },
  })
  const { events } = await start(sync.runner({ checkEveryMs: 20 }), { presenceMs: 50 })
  // One chunk makes its call, one has reserved the next and waits for it, and the third finds no room.
  const postponed = events.next('settled', ({ outcome }) => outcome === 'postponed')
  const { jobId } = await limited.enqueue(db, { matrixId: 'm' })
  await postponed
  const hash = (await syncChunks(db)).find(({ state }) => state === 'AVAILABLE')?.chunk_hash ?? ''
  const {
    text,
    by,
    until,
    command = '',
  } = await whenGiven(async () => explainChunk(db, jobId, hash), 'sourceRateLimit')
  expect(text).toMatch(
    /^It is not due until .*Z \(in \d+ s\), and it may be that its source had no room: calls are reserved ahead, those to crm until .*Z \(in 1[67] min\)\.$/,
  )
  expect({ by, isMoment: until instanceof Date }).toEqual({ by: 'crm', isMoment: true })
  const over = events.next('settled', ({ outcome }) => outcome === 'postponed')
  await db.query({ text: command })
  await over
})

it('sourceRateLimit: the plan of a job was postponed', async () => {
  const sync = createSync()
  const limited = sync.define<number>('limited', {
    plan: async (_, { call }) => {
      await call()
      return [1]
    },
    syncChunk: async () => ({ rows: 1 }),
    source: { name: 'crm', perSecond: 0.001 },
  })
  const { events } = await start(sync.runner({ checkEveryMs: 20 }), { presenceMs: 50 })
  await limited.enqueue(db, { matrixId: 'first' })
  // Its plan makes a call, and its chunk has reserved the next.
  const isFull = `select exists (select from leasehold.sync_sources where next_at > now() + interval '10 min') as "isFull"`
  await expect
    .poll(async () => (await db.query<{ isFull: boolean }>({ text: isFull })).rows[0]?.isFull, BOUND)
    .toBe(true)
  const postponed = events.next('settled', ({ outcome }) => outcome === 'waiting')
  const { jobId } = await limited.enqueue(db, { matrixId: 'second' })
  await postponed
  const { text, by, command = '' } = await whenGiven(async () => explainJob(db, jobId), 'sourceRateLimit')
  expect(text).toMatch(/those to crm until .*Z \(in 1[67] min\)\.$/)
  expect(by).toBe('crm')
  const oncemore = events.next('settled', ({ outcome }) => outcome === 'waiting')
  await db.query({ text: command })
  await oncemore
})

it('retryWait: of a row at which an attempt has failed, whatever its source and its chunks', async () => {
  await db.query({
    text: `insert into leasehold.sync_sources values ('crm', now() + interval '1 hour');
insert into leasehold.sync_jobs (definition, matrix_id, planned_at, next_check_at, attempts, error_message) values
  ('d', 'm', null, now() + interval '1 hour', 1, 'HTTP 503'), ('d', 'n', now(), now() + interval '1 hour', 1, 'no memory');
insert into leasehold.sync_checkpoints (matrix_id, chunk_hash, definition, chunk_query, next_attempt_at, attempts, needed) values ('m', 'h', 'd', '{}', now() + interval '1 hour', 1, true);
insert into leasehold.sync_job_chunks (job_id, matrix_id, chunk_hash, skipped) select id, 'm', 'h', false from leasehold.sync_jobs where matrix_id = 'm'`,
  })
  const { rows } = await db.query<{ id: string }>({ text: 'select id from leasehold.sync_jobs order by id' })
  const [unplanned = '', planned = ''] = rows.map(({ id }) => id)
  expect(codesOf(await explainJob(db, unplanned))).toEqual(['retryWait', 'noWorker'])
  expect(codesOf(await explainJob(db, planned))).toEqual(['waitsForChunks', 'retryWait', 'noWorker'])
  expect(codesOf(await explainChunk(db, unplanned, 'h'))).toEqual(['retryWait', 'noWorker'])
})

it('retryWait, dead and finished: of a chunk and of a job', async () => {
  const sync = createSync()
  const failing = sync.define<number>('failing', {
    plan: () => [1],
    syncChunk: async () => Promise.reject(new Error('HTTP 503')),
    retry: { maxAttempts: 2, firstMs: 600_000 },
  })
  const { jobId } = await failing.enqueue(db, { matrixId: 'm' })
  const { events } = await start(sync.runner({ checkEveryMs: 20 }), { presenceMs: 50 })
  await events.next('settled', ({ outcome }) => outcome === 'retry')
  const hash = (await syncChunks(db))[0]?.chunk_hash ?? ''
  const { text, command = '' } = await whenGiven(async () => explainChunk(db, jobId, hash), 'retryWait')
  expect(text).toMatch(/^1 attempt has failed, and the next one is due at .*: .*HTTP 503.*\.$/)
  const over = events.next(
    'settled',
    ({ table, outcome }) => table.endsWith('sync_jobs') && outcome === 'dead',
  )
  await db.query({ text: `${command}; select leasehold.wake('sync')` })
  await over
  expect((await whenGiven(async () => explainChunk(db, jobId, hash), 'dead')).command).toBe(
    `leasehold sync replay ${jobId} --reason '…'`,
  )
  expect((await whenGiven(async () => explainJob(db, jobId), 'dead')).text).toMatch(
    /^It failed at .*HTTP 503/,
  )
})

it('notNeeded: the job of the chunk was cancelled', async () => {
  const sync = createSync()
  const held = sync.define<number>('held', { plan: () => [1], syncChunk: async () => ({ rows: 1 }) })
  const { jobId } = await held.enqueue(db, { matrixId: 'm' })
  const [, chunks] = sync.runner({ checkEveryMs: 20 })
  const [jobs] = sync.runner({ checkEveryMs: 20 })
  expect(chunks.name).toBe('sync')
  const { events } = await start([jobs], { presenceMs: 50 })
  await events.next('settled', ({ outcome }) => outcome === 'waiting')
  const hash = (await syncChunks(db))[0]?.chunk_hash ?? ''
  expect(codesOf(await explainChunk(db, jobId, hash))).toEqual(['noWorker'])
  await cancel(db, { filter: { ids: [jobId] }, principal: 'alice', reason: 'by mistake' })
  expect(await whenGiven(async () => explainChunk(db, jobId, hash), 'notNeeded')).toMatchObject({
    command: `leasehold sync replay ${jobId} --reason '…'`,
  })
})

it('a job or a chunk that does not exist is not found', async () => {
  await expect(explainJob(db, '4711')).rejects.toMatchObject({ code: 'JOB_NOT_FOUND' })
  await expect(explainChunk(db, '4711', 'x')).rejects.toMatchObject({ code: 'JOB_NOT_FOUND' })
  const sync = createSync()
  const { jobId } = await sync
    .define('a', { plan: () => [], syncChunk: async () => undefined })
    .enqueue(db, { matrixId: 'm' })
  await expect(explainChunk(db, jobId, 'x')).rejects.toMatchObject({ code: 'ROW_NOT_FOUND' })
  await expect(explainJob(db, 'x')).rejects.toMatchObject({ code: 'REQUEST_INVALID' })
})

expectAllStaged('sync')
