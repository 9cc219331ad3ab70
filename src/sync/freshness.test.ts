/** Which chunks a job syncs once more, and which it skips. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { emptySync, gate, syncChunks, syncJobs, watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import type { NewJob } from './enqueue.ts'
import { createSync, type Defined } from './sync.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

interface Numbers {
  readonly done: number[]
  readonly defined: Defined<unknown>
  /** Asks for a job and waits for its end. */
  readonly run: (job?: Partial<NewJob>) => Promise<string>
}

/** Chunks 1, 2 and 3 of every matrix. */
async function numbers(): Promise<Numbers> {
  const sync = createSync()
  const done: number[] = []
  const defined = sync.define<number>('numbers', {
    plan: () => [1, 2, 3],
    syncChunk: async ({ query }) => {
      done.push(query)
      return Promise.resolve({ rows: query })
    },
    concurrency: 1,
  })
  const { events } = await start(sync.runner({ checkEveryMs: 20 }))
  const jobs = watchJobs(events)
  return {
    done,
    defined,
    async run(job = {}) {
      const { jobId } = await defined.enqueue(db, { matrixId: 'm', ...job })
      expect(await jobs.ended(jobId)).toBe('done')
      return jobId
    },
  }
}

async function skipped(jobId: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: 'select count(*)::int as count from leasehold.sync_job_chunks where job_id = $1 and skipped',
    values: [jobId],
  })
  return rows[0]?.count ?? -1
}

async function age(hours: number, hash = '%'): Promise<void> {
  await db.query({
    text: `update leasehold.sync_checkpoints set last_synced_at = now() - $1 * interval '1 hour'
      where chunk_query::text like $2`,
    values: [hours, hash],
  })
}

describe('a chunk that was synced before', () => {
  it('is skipped, and the job says so', async () => {
    const { done, run } = await numbers()
    expect(await skipped(await run())).toBe(0)
    expect(done).toEqual([1, 2, 3])
    const before = await syncChunks(db)
    await age(24 * 365)
    expect(await skipped(await run())).toBe(3)
    expect(done).toEqual([1, 2, 3])
    expect((await syncChunks(db)).map(({ lock_token: token }) => token)).toEqual(
      before.map(({ lock_token: token }) => token),
    )
  })

  it('is synced once more if the job is forced', async () => {
    const { done, run } = await numbers()
    await run()
    expect(await skipped(await run({ force: true }))).toBe(0)
    expect(done).toEqual([1, 2, 3, 1, 2, 3])
    expect((await syncChunks(db)).every(({ state }) => state === 'COMPLETED')).toBe(true)
  })

  it('is synced once more if it is older than the job allows', async () => {
    const { done, run } = await numbers()
    await run()
    await age(3, '2')
    const day = 24 * 3_600_000
    expect(await skipped(await run({ freshForMs: day }))).toBe(3)
    expect(await skipped(await run({ freshForMs: 3_600_000 }))).toBe(2)
    expect(done).toEqual([1, 2, 3, 2])
  })

  it('the same query in another matrix is another chunk', async () => {
    const { done, run } = await numbers()
    await run()
    expect(await skipped(await run({ matrixId: 'other' }))).toBe(0)
    expect(done).toHaveLength(6)
  })

  it('a chunk that has failed is retried by the next job', async () => {
    const { done, run } = await numbers()
    await run()
    // Not needed in between: the runner that is still there could claim it.
    for (const set of [
      'completed_at = null, needed = false',
      "failed_at = now(), error_message = 'once', attempts = 5, expiries = 5, needed = true",
    ])
      await db.query({ text: `update leasehold.sync_checkpoints set ${set} where chunk_query = '3'` })
    expect(await skipped(await run())).toBe(2)
    expect(done).toEqual([1, 2, 3, 3])
    expect(await syncChunks(db)).toMatchObject(
      [1, 2, 3].map(() => ({ state: 'COMPLETED', attempts: 0, expiries: 0, error_message: null })),
    )
  })
})

describe('jobs of one matrix', () => {
  it('are limited to one open job, whose id is returned instead of a second one', async () => {
    const { defined, run } = await numbers()
    const first = await run()
    const [a, b] = await db.transaction(async (tx) => [
      await defined.enqueue(tx, { matrixId: 'm' }),
      await defined.enqueue(tx, { matrixId: 'm', priority: 7 }),
    ])
    expect(a).toMatchObject({ created: true })
    expect(b).toEqual({ jobId: a?.jobId, created: false })
    expect(a?.jobId).not.toBe(first)
  })

  it('are limited to one open job when many are enqueued concurrently', async () => {
    const defined = createSync().define<number>('idle', { plan: () => [], syncChunk: async () => undefined })
    const asked = await Promise.all(
      Array.from({ length: 8 }, async () => defined.enqueue(db, { matrixId: 'm' })),
    )
    expect(asked.filter(({ created }) => created)).toHaveLength(1)
    expect(new Set(asked.map(({ jobId }) => jobId)).size).toBe(1)
    expect(await syncJobs(db)).toHaveLength(1)
  })

  it('run in parallel if asked for, and share the chunks: each is synced once', async () => {
    const sync = createSync()
    const [held, started] = [gate(), gate()]
    let calls = 0
    const slow = sync.define<number>('slow', {
      plan: () => [1],
      syncChunk: async () => {
        calls += 1
        started.open()
        await held.opened
        return { rows: 1 }
      },
    })
    const { events } = await start(sync.runner({ checkEveryMs: 20 }))
    const jobs = watchJobs(events)
    const first = await slow.enqueue(db, { matrixId: 'm' })
    await started.opened
    const planned = events.next('settled', ({ outcome }) => outcome === 'planned')
    const second = await slow.enqueue(db, { matrixId: 'm', parallel: true })
    expect(second.created).toBe(true)
    await planned
    held.open()
    expect(await Promise.all([first, second].map(async ({ jobId }) => jobs.ended(jobId)))).toEqual([
      'done',
      'done',
    ])
    expect(calls).toBe(1)
  })
})

it('a job and its chunks come before those of a lower priority', async () => {
  const sync = createSync()
  const order: string[] = []
  const [held, started] = [gate(), gate()]
  const ranked = sync.define<number>('ranked', {
    plan: () => [1, 2],
    syncChunk: async ({ matrixId, query }) => {
      order.push(`${matrixId} ${query}`)
      started.open()
      if (matrixId === 'first') await held.opened
    },
    concurrency: 1,
  })
  const { events } = await start(sync.runner({ checkEveryMs: 20 }))
  const jobs = watchJobs(events)
  await ranked.enqueue(db, { matrixId: 'first' })
  await started.opened
  const enqueued = []
  for (const priority of [0, 5, -5]) {
    const planned = events.next('settled', ({ outcome }) => outcome === 'planned')
    enqueued.push(await ranked.enqueue(db, { matrixId: `priority ${priority}`, priority }))
    await planned
  }
  held.open()
  for (const { jobId } of enqueued) await jobs.ended(jobId)
  expect(order).toEqual([
    'first 1',
    'priority 5 1',
    'priority 5 2',
    // Jobs of one priority take turns.
    'priority 0 1',
    'first 2',
    'priority 0 2',
    'priority -5 1',
    'priority -5 2',
  ])
})

it('a chunk of another definition with the same matrix and the same query is another chunk', async () => {
  const sync = createSync()
  const done: string[] = []
  const names = ['customers', 'orders']
  const defined = names.map((name) =>
    sync.define<{ page: number }>(name, {
      plan: () => [{ page: 1 }],
      syncChunk: async () => {
        done.push(name)
        return Promise.resolve({ rows: 1 })
      },
    }),
  )
  const { events } = await start(sync.runner({ checkEveryMs: 20 }))
  const jobs = watchJobs(events)
  for (const one of defined) {
    const { jobId } = await one.enqueue(db, { matrixId: 'acme' })
    expect(await jobs.ended(jobId)).toBe('done')
  }
  expect(done).toEqual(names)
})
