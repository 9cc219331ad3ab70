/** How a plan becomes chunks, and who does what. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { emptySync, gate, statesOf, syncChunks, syncJobs, watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events } from '../worker/index.ts'
import { chunkHash, inBatches } from './plan.ts'
import { createSync } from './sync.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
const OPTIONS = { checkEveryMs: 20 }

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

describe('a plan', () => {
  it('the first chunks of a plan that is a stream are synced before it ends', async () => {
    const sync = createSync()
    const firstDone = gate()
    const streamed = sync.define<number>('streamed', {
      async *plan() {
        yield 1
        // It goes on only once somebody has done the first.
        await firstDone.opened
        yield 2
      },
      syncChunk: async ({ query }) => {
        if (query === 1) firstDone.open()
        return Promise.resolve({ rows: 1 })
      },
    })
    const { events } = await start(sync.runner(OPTIONS))
    const jobs = watchJobs(events)
    const { jobId } = await streamed.enqueue(db, { matrixId: 'm' })
    expect(await jobs.ended(jobId)).toBe('done')
    expect(statesOf(await syncChunks(db))).toEqual({ COMPLETED: 2 })
  })

  it('a plan is written whole although another session locks its job for a moment', async () => {
    const sync = createSync()
    const locked = gate()
    const numbers = sync.define<number>('numbers', {
      plan: async () => {
        await locked.opened
        return [1, 2, 3]
      },
      syncChunk: async () => Promise.resolve({ rows: 1 }),
    })
    const { events } = await start(sync.runner(OPTIONS))
    const jobs = watchJobs(events)
    const claimed = events.next('started', ({ table }) => table.endsWith('sync_jobs'))
    const { jobId } = await numbers.enqueue(db, { matrixId: 'm' })
    await claimed
    const writes = async (): Promise<number> => {
      const text =
        "select from pg_stat_activity where query like '%leasehold:plan sync_jobs%' and pid <> pg_backend_pid()"
      return (await db.query({ text })).rowCount ?? 0
    }
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from leasehold.sync_jobs for update' })
      locked.open()
      // It has tried.
      await expect.poll(writes).toBeGreaterThan(0)
    })
    expect(await jobs.ended(jobId)).toBe('done')
    expect(statesOf(await syncChunks(db))).toEqual({ COMPLETED: 3 })
  })

  it('a plan of thousands of chunks is written whole, and each chunk is synced once', async () => {
    const sync = createSync()
    const done: number[] = []
    const many = sync.define<{ n: number }>('many', {
      *plan() {
        for (let n = 0; n < 2_300; n += 1) yield { n }
        // One more than once.
        yield { n: 7 }
      },
      syncChunk: async ({ query }) => {
        done.push(query.n)
        return Promise.resolve({ rows: 1 })
      },
      concurrency: 100,
    })
    const { events } = await start(sync.runner(OPTIONS))
    const jobs = watchJobs(events)
    const { jobId } = await many.enqueue(db, { matrixId: 'm' })
    expect(await jobs.ended(jobId)).toBe('done')
    expect(done.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 2_300 }, (_, n) => n))
  })

  it('SYNC-04: a runner with one slot plans the highest priority first, then the oldest job, across its definitions', async () => {
    const sync = createSync()
    const planned: string[] = []
    const names = ['a', 'b', 'c']
    for (const name of names)
      sync.define<number>(name, {
        plan: ({ matrixId }) => {
          planned.push(matrixId)
          return []
        },
        syncChunk: async () => undefined,
      })
    const jobIds: string[] = []
    for (const [n, priority] of [0, 1, 2, 0, 1, 2, 2, 1, 0].entries()) {
      const job = { matrixId: `${n} with ${priority}`, priority }
      jobIds.push((await sync.enqueue(db, names[n % 3] ?? '', job)).jobId)
    }
    const events = new Events()
    const jobs = watchJobs(events)
    await start(sync.runner({ ...OPTIONS, jobs: { concurrency: 1 } }), { events })
    for (const jobId of jobIds) expect(await jobs.ended(jobId)).toBe('done')
    expect(planned).toEqual(
      ['2 with 2', '5 with 2', '6 with 2', '1 with 1', '4 with 1', '7 with 1'].concat(
        '0 with 0',
        '3 with 0',
        '8 with 0',
      ),
    )
  })

  it('without chunks completes its job', async () => {
    const sync = createSync()
    const none = sync.define<number>('none', { plan: () => [], syncChunk: async () => undefined })
    const { events } = await start(sync.runner(OPTIONS))
    const jobs = watchJobs(events)
    const { jobId } = await none.enqueue(db, { matrixId: 'm' })
    expect(await jobs.ended(jobId)).toBe('done')
  })

  it('gets the parameters of its job, and each chunk gets the query that the plan yielded', async () => {
    const sync = createSync()
    const seen: unknown[] = []
    const told = sync.define<{ year: number; of: string }, { years: number[] }>('told', {
      plan: ({ matrixId, params, force, id }, { attempt, token }) => {
        seen.push([matrixId, params, force, typeof id, attempt, token])
        return params.years.map((year) => ({ year, of: matrixId }))
      },
      syncChunk: async ({ matrixId, query, hash }, { attempt, token, signal }) => {
        seen.push([matrixId, query, hash === chunkHash('told', query), attempt, token, signal.aborted])
        return Promise.resolve({ rows: 1 })
      },
    })
    const { events } = await start(sync.runner(OPTIONS))
    const jobs = watchJobs(events)
    const { jobId } = await told.enqueue(db, { matrixId: 'POP', params: { years: [2024] }, force: true })
    await jobs.ended(jobId)
    expect(seen).toEqual([
      ['POP', { years: [2024] }, true, 'string', 1, expect.any(BigInt)],
      ['POP', { year: 2024, of: 'POP' }, true, 1, expect.any(BigInt), false],
    ])
  })

  it('may hash its chunks itself', async () => {
    const sync = createSync()
    const named = sync.define<{ year: number; asOf: string }>('named', {
      plan: ({ params }) => [{ year: 2024, asOf: String(params) }],
      syncChunk: async () => Promise.resolve({ rows: 1 }),
      hash: ({ year }) => `year ${year}`,
    })
    const { events } = await start(sync.runner(OPTIONS))
    const jobs = watchJobs(events)
    for (const params of ['monday', 'tuesday']) {
      await jobs.ended((await named.enqueue(db, { matrixId: 'm', params, force: true })).jobId)
    }
    expect(await syncChunks(db)).toMatchObject([
      { chunk_hash: 'year 2024', chunk_query: { year: 2024, asOf: 'tuesday' }, lock_token: A_TOKEN },
    ])
  })
})

it('a job has its chunks synced even if another job that ended has unmarked them', async () => {
  const sync = createSync()
  const patient = sync.define<number>('patient', {
    plan: () => [1, 2],
    syncChunk: async () => Promise.resolve({ rows: 1 }),
  })
  const { jobId } = await patient.enqueue(db, { matrixId: 'm' })
  // Planned by somebody, and given up by another in the same moment.
  await db.query({
    text: `with planned as (update leasehold.sync_jobs set planned_at = now()), chunks as (
        insert into leasehold.sync_checkpoints (matrix_id, chunk_hash, definition, chunk_query, needed)
        select 'm', 'h' || n, 'patient', to_jsonb(n), false from generate_series(1, 2) as n returning chunk_hash)
      insert into leasehold.sync_job_chunks (job_id, matrix_id, chunk_hash) select $1, 'm', chunk_hash from chunks`,
    values: [jobId],
  })
  const { events } = await start(sync.runner(OPTIONS))
  expect(await watchJobs(events).ended(jobId)).toBe('done')
  expect(statesOf(await syncChunks(db))).toEqual({ COMPLETED: 2 })
})

describe('two runners', () => {
  it('claim only chunks of their own definitions', async () => {
    const done: string[] = []
    const runnerOf = async (name: string) => {
      const sync = createSync()
      const defined = sync.define<number>(name, {
        plan: () => [1, 2],
        syncChunk: async ({ matrixId, query }) => {
          done.push(`${name} did ${matrixId} ${query}`)
          return Promise.resolve({ rows: 1 })
        },
      })
      const { events } = await start(sync.runner(OPTIONS))
      return { sync, defined, events, jobs: watchJobs(events) }
    }
    const mine = await runnerOf('mine')
    // Asked for by name, by a process that does not have the definition.
    const theirs = await mine.sync.enqueue(db, 'theirs', { matrixId: 'b' })
    const own = await mine.defined.enqueue(db, { matrixId: 'a' })
    expect(await mine.jobs.ended(own.jobId)).toBe('done')
    expect(await syncJobs(db)).toMatchObject([
      { definition: 'theirs', state: 'AVAILABLE', lock_token: '0' },
      { definition: 'mine', state: 'COMPLETED' },
    ])
    const other = await runnerOf('theirs')
    expect(await other.jobs.ended(theirs.jobId)).toBe('done')
    expect(done.toSorted()).toEqual(['mine did a 1', 'mine did a 2', 'theirs did b 1', 'theirs did b 2'])
  })

  it('share the chunks of one job, and each chunk is synced by one of them', async () => {
    const busy = new Set<string>()
    const both = gate()
    const done: number[] = []
    const definitionOf = (name: string) => {
      const sync = createSync()
      const defined = sync.define<number>('shared', {
        plan: () => Array.from({ length: 20 }, (_, n) => n),
        syncChunk: async ({ query }) => {
          done.push(query)
          busy.add(name)
          if (busy.size === 2) both.open()
          // Nobody goes on before both have begun.
          await both.opened
          return { rows: 1 }
        },
        concurrency: 2,
      })
      return { defined, workers: sync.runner(OPTIONS) }
    }
    const [a, b] = [definitionOf('a'), definitionOf('b')]
    const { jobId } = await a.defined.enqueue(db, { matrixId: 'm' })
    const running = [await start(a.workers), await start(b.workers)]
    const jobs = watchJobs(...running.map(({ events }) => events))
    expect(await jobs.ended(jobId)).toBe('done')
    expect(done.toSorted((x, y) => x - y)).toEqual(Array.from({ length: 20 }, (_, n) => n))
  })
})

describe('batches of a stream', () => {
  const maxItems = 3

  it('are full while it yields quickly, and contain whatever there is when it pauses', async () => {
    const asked = gate()
    async function* slowly(): AsyncGenerator<number> {
      yield* [1, 2]
      await asked.opened
      yield* [3, 4, 5, 6]
    }
    const batches: number[][] = []
    for await (const batch of inBatches(slowly(), { maxItems, waitMs: 5 })) {
      batches.push(batch)
      asked.open()
    }
    expect(batches).toEqual([[1, 2], [3, 4, 5], [6]])
  })

  it('of a plain list are all full except the last; an empty list has none', async () => {
    const batches: number[][] = []
    for await (const batch of inBatches([1, 2, 3, 4], { maxItems, waitMs: 60_000 })) batches.push(batch)
    for await (const batch of inBatches<number>([], { maxItems, waitMs: 60_000 })) batches.push(batch)
    expect(batches).toEqual([[1, 2, 3], [4]])
  })

  it('end with the error of the stream, and close it when the consumer stops', async () => {
    let closed = 0
    async function* failing(): AsyncGenerator<number> {
      try {
        yield* [1, 2, 3]
        throw new Error('no more')
      } finally {
        closed += 1
      }
    }
    const all = inBatches(failing(), { maxItems, waitMs: 60_000 })
    expect(await all.next()).toMatchObject({ value: [1, 2, 3] })
    await expect(all.next()).rejects.toThrow('no more')
    const some = inBatches(failing(), { maxItems: 1, waitMs: 60_000 })
    await some.next()
    await some.return()
    expect(closed).toBe(2)
  })
})
