/** Chunks and plans that fail, and what that means for their job. */
import { afterAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { emptySync, gate, syncChunks, syncJobs, watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { PermanentError, SaturatedError } from '../worker/completion/outcome.ts'
import { Events } from '../worker/events.ts'
import type { SyncDefinition } from './definition.ts'
import { createSync } from './sync.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
const QUICK = { firstMs: 1, longestMs: 1, jitter: 0 }

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

/** Runs one job of this definition to its end. */
async function run(definition: SyncDefinition<number>): Promise<'done' | 'dead'> {
  const sync = createSync()
  const defined = sync.define('failing', { concurrency: 1, retry: QUICK, ...definition })
  const { events } = await start(sync.runner({ checkEveryMs: 20 }))
  const jobs = watchJobs(events)
  const { jobId } = await defined.enqueue(db, { matrixId: 'm' })
  return jobs.ended(jobId)
}

describe('a chunk that fails', () => {
  it('a failed chunk is retried, and the job is completed when it succeeds', async () => {
    const attempts: number[] = []
    const end = await run({
      plan: () => [1, 2],
      syncChunk: async ({ query }, { attempt }) => {
        if (query === 2) attempts.push(attempt)
        if (query === 2 && attempt < 3) throw new Error('busy')
        return Promise.resolve({ rows: 1 })
      },
    })
    expect(end).toBe('done')
    expect(attempts).toEqual([1, 2, 3])
    expect(await syncChunks(db)).toMatchObject([
      { state: 'COMPLETED', lock_token: A_TOKEN },
      { state: 'COMPLETED', attempts: 0, lock_token: A_TOKEN, error_message: null },
    ])
  })

  it('a chunk waits longer after each failure, as its policy defines', async () => {
    const sync = createSync()
    const failing = sync.define<number>('patient', {
      plan: () => [1],
      syncChunk: async () => Promise.reject(new Error('busy')),
      retry: { firstMs: 60_000, factor: 10, longestMs: 6_000_000, jitter: 0 },
    })
    const { events } = await start(sync.runner({ checkEveryMs: 20 }))
    const settledAs = (outcome: string): Promise<unknown> =>
      events.next('settled', (event) => event.table.endsWith('checkpoints') && event.outcome === outcome)
    const waits: (number | undefined)[] = []
    let failed = settledAs('retry')
    await failing.enqueue(db, { matrixId: 'm' })
    for (let i = 0; i < 3; i += 1) {
      await failed
      const { rows } = await db.query<{ minutes: number }>({
        text: `select round(extract(epoch from next_attempt_at - now()) / 60)::int as minutes from leasehold.sync_checkpoints`,
      })
      waits.push(rows[0]?.minutes)
      failed = settledAs('retry')
      await db.query({
        text: `with due as (update leasehold.sync_checkpoints set next_attempt_at = now()) select leasehold.wake('sync')`,
      })
    }
    await failed
    expect(waits).toEqual([1, 10, 100])
    expect(await syncChunks(db)).toMatchObject([
      { state: 'AVAILABLE', error_message: 'Error: busy', attempts: 4 },
    ])
  })

  it('a chunk that fails for good does not stop the others; the job fails at the end, with the reason', async () => {
    const end = await run({
      plan: () => [1, 2, 3, 4],
      syncChunk: async ({ query }) => {
        if (query % 2 === 1) throw new Error(`number ${query} is unlucky`)
        return Promise.resolve({ rows: query })
      },
      retry: { ...QUICK, maxAttempts: 2 },
    })
    expect(end).toBe('dead')
    const failed = { state: 'FAILED', attempts: 2 }
    expect(await syncChunks(db)).toMatchObject([
      { ...failed, error_message: 'Error: number 1 is unlucky' },
      { state: 'COMPLETED', row_count: '2' },
      { ...failed, error_message: 'Error: number 3 is unlucky' },
      { state: 'COMPLETED', row_count: '4' },
    ])
    expect(await syncJobs(db)).toMatchObject([
      {
        state: 'FAILED',
        error_message: '2 chunks failed; the first: Error: number 1 is unlucky',
        completed_at: null,
        locked_by: null,
      },
    ])
  })

  it('a chunk that fails for good fails the job at once where its definition says stop, and synced chunks stay synced', async () => {
    const held = gate()
    const sync = createSync()
    const started: number[] = []
    const strict = sync.define<number>('strict', {
      plan: () => Array.from({ length: 30 }, (_, n) => n),
      syncChunk: async ({ query }) => {
        started.push(query)
        if (query === 1) throw new PermanentError('gone')
        if (query > 1) await held.opened
        return { rows: 1 }
      },
      concurrency: 2,
      onChunkFailure: 'stop',
    })
    const { events } = await start(sync.runner({ checkEveryMs: 20 }))
    const jobs = watchJobs(events)
    const { jobId } = await strict.enqueue(db, { matrixId: 'm' })
    expect(await jobs.ended(jobId)).toBe('dead')
    expect(await syncJobs(db)).toMatchObject([
      { state: 'FAILED', error_message: '1 chunk failed; the first: PermanentError: gone' },
    ])
    // Those in flight are finished, the others are not begun.
    const inFlight = (await syncChunks(db)).filter(({ state }) => state === 'RUNNING')
    const hashes = inFlight.map(({ chunk_hash: hash }) => hash)
    const finished = hashes.map(async (hash) =>
      events.next('settled', ({ ids }) => ids.some((id) => id.includes(hash))),
    )
    held.open()
    await Promise.all(finished)
    const chunks = await syncChunks(db)
    expect(chunks.filter(({ needed }) => !needed).length).toBeGreaterThanOrEqual(25)
    expect(started.length).toBeLessThanOrEqual(5)
    expect(chunks.filter(({ chunk_hash: hash }) => hashes.includes(hash))).toMatchObject(
      hashes.map(() => ({ state: 'COMPLETED' })),
    )
    expect(chunks[0]).toMatchObject({ state: 'COMPLETED', row_count: '1' })
  })

  it('with a permanent error is not retried', async () => {
    let calls = 0
    const end = await run({
      plan: () => [1],
      syncChunk: async () => {
        calls += 1
        return Promise.reject(new PermanentError('no such table'))
      },
    })
    expect([end, calls]).toEqual(['dead', 1])
  })

  it('a chunk whose source has no room is released without counting an attempt', async () => {
    const attempts: number[] = []
    const end = await run({
      plan: () => [1],
      syncChunk: async (_, { attempt }) => {
        attempts.push(attempt)
        if (attempts.length < 4) throw new SaturatedError(1)
        return Promise.resolve({ rows: 1 })
      },
      retry: { ...QUICK, maxAttempts: 2 },
    })
    expect([end, attempts]).toEqual(['done', [1, 1, 1, 1]])
  })

  it('after it had settled in a transaction that was rolled back is not lost', async () => {
    await db.query({ text: 'create table public.effects (n int not null)' })
    const end = await run({
      plan: () => [1],
      syncChunk: async ({ query }, { settleIn, attempt }) => {
        await db.transaction(async (tx) => {
          await tx.query({ text: 'insert into public.effects values ($1)', values: [query] })
          await settleIn(tx, { rows: 1 })
          if (attempt === 1) throw new Error('the connection broke')
        })
      },
    })
    expect(end).toBe('done')
    expect((await db.query({ text: 'select n from public.effects' })).rows).toEqual([{ n: 1 }])
    expect(await syncChunks(db)).toMatchObject([{ state: 'COMPLETED', lock_token: A_TOKEN, row_count: '1' }])
  })

  it.each([-1, 1.5, Number.NaN])('a chunk that returned %s rows fails for good', async (rows) => {
    const end = await run({ plan: () => [1], syncChunk: async () => Promise.resolve({ rows }) })
    expect(end).toBe('dead')
    expect((await syncChunks(db))[0]?.error_message).toContain('a whole number from 0')
  })
})

it('a job whose leases have expired too often is not planned, and its error names the attempts allowed', async () => {
  const sync = createSync()
  const plan = vi.fn<() => number[]>(() => [1])
  const defined = sync.define<number>('expiring', {
    plan,
    syncChunk: async () => Promise.resolve({ rows: 1 }),
    retry: { ...QUICK, maxAttempts: 4 },
  })
  const { jobId } = await defined.enqueue(db, { matrixId: 'm' })
  // The leases of four attempts have expired, and that of a runner that was about to give the job up.
  await db.query({ text: 'update leasehold.sync_jobs set attempts = 5, expiries = 5' })
  const events = new Events()
  const jobs = watchJobs(events)
  await start(sync.runner({ checkEveryMs: 20 }), { events })
  expect(await jobs.ended(jobId)).toBe('dead')
  expect(plan).not.toHaveBeenCalled()
  expect((await syncJobs(db))[0]?.error_message).toMatch(/^given up after 4 attempts: its workers died/)
})

describe('a plan that throws', () => {
  it('a plan that throws is retried, and chunks that it had yielded are not synced twice', async () => {
    const done: number[] = []
    let plans = 0
    const end = await run({
      async *plan() {
        plans += 1
        yield* [1, 2]
        if (plans < 3) throw new Error('page 3 is missing')
        yield Promise.resolve(3)
      },
      syncChunk: async ({ query }) => {
        done.push(query)
        return Promise.resolve({ rows: 1 })
      },
    })
    expect([end, plans]).toEqual(['done', 3])
    expect(done.toSorted((a, b) => a - b)).toEqual([1, 2, 3])
    expect(await syncJobs(db)).toMatchObject([{ attempts: 0, error_message: null }])
  })

  it('a plan that fails for good leaves none of its chunks needed', async () => {
    const firstDone = async (): Promise<void> =>
      vi.waitFor(async () => expect(await syncChunks(db)).toMatchObject([{ state: 'COMPLETED' }, {}, {}]), {
        timeout: 120_000,
        interval: 20,
      })
    const end = await run({
      async *plan() {
        yield* [1, 2, 3]
        await firstDone()
        throw new PermanentError('no more')
      },
      syncChunk: async ({ query }, { signal }) => {
        if (query > 1) await new Promise((resolve) => signal.addEventListener('abort', resolve))
        return { rows: 1 }
      },
    })
    expect(end).toBe('dead')
    expect((await syncChunks(db)).filter(({ state }) => state !== 'COMPLETED')).toMatchObject(
      [2, 3].map((query) => ({ chunk_query: query, needed: false })),
    )
  })

  it('a plan that throws too often fails the job, with its error', async () => {
    let plans = 0
    const end = await run({
      plan: () => {
        plans += 1
        throw new Error('the catalogue is down')
      },
      syncChunk: async () => Promise.resolve({ rows: 1 }),
      retry: { ...QUICK, maxAttempts: 3 },
    })
    expect([end, plans]).toEqual(['dead', 3])
    expect(await syncJobs(db)).toMatchObject([
      { state: 'FAILED', error_message: 'Error: the catalogue is down', locked_by: null },
    ])
  })

  it('with a permanent error fails the job at once', async () => {
    const end = await run({
      plan: () => {
        throw new PermanentError('there is no such matrix')
      },
      syncChunk: async () => Promise.resolve({ rows: 1 }),
    })
    expect(end).toBe('dead')
    expect((await syncJobs(db))[0]?.error_message).toBe('PermanentError: there is no such matrix')
  })
})
