/** Values that a definition written without types may return. Each is refused with a message. */
import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { emptySync, watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import type { PlanContext } from './definition.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

const plan = (): number[] => [1, 2]
const SOURCE = { name: 'office', perSecond: 1_000 }
const syncChunk = async (): Promise<{ rows: number }> => Promise.resolve({ rows: 1 })

it.each([
  [{ plan: () => 5 }, 'plan returned 5, but must return or yield chunks'],
  [{ plan: () => ({ chunks: [] }) }, 'but must return or yield chunks'],
  [{ plan: () => [undefined] }, 'plan yielded undefined'],
  [{ hash: async () => Promise.resolve('a') }, 'but must return a text that is not empty'],
  [{ hash: () => '' }, "returned '', but must return a text"],
  [{ hash: () => 'a\0b' }, 'but must return a text'],
  [{ hash: () => 'half \ud83d' }, 'but must return a text'],
  [{ hash: () => 'h'.repeat(501) }, 'at most 500 bytes'],
  [{ plan: () => [{ year: '\0' }] }, String.raw`query.year contains the character \u0000`],
  [{ plan: () => [{ year: '\ud83d' }] }, 'query.year contains half a surrogate pair'],
  [{ plan: () => [{ year: 1 / 0 }] }, 'query.year is Infinity, which is not JSON'],
  [{ plan: () => [10n ** 40n] }, 'query is a BigInt, which is not JSON'],
  [{ plan: () => ['x'.repeat(70_000)] }, 'of 70002 bytes, but a query can have at most 65536'],
  [
    { plan: async (_: unknown, { call }: PlanContext) => call(1e300).then(() => []), source: SOURCE },
    'call(1e+300) cannot be: give a whole number of calls from 1 to 1000000',
  ],
  [{ syncChunk: async () => Promise.resolve({ rows: 1e300 }) }, 'brought 1e+300 rows'],
  [{ syncChunk: async () => Promise.resolve(7) }, 'syncChunk returned 7, but must return { rows }'],
  [{ syncChunk: async () => Promise.resolve({ rows: -1 }) }, 'brought -1 rows'],
])('the result %o is refused, and the job fails with the reason', async (broken, message) => {
  const sync = createSync()
  const defined = sync.define('broken', { plan, syncChunk, retry: { maxAttempts: 1 }, ...broken } as never)
  const { events } = await start(sync.runner({ checkEveryMs: 20 }))
  const jobs = watchJobs(events)
  const { jobId } = await defined.enqueue(db, { matrixId: 'm' })
  expect(await jobs.ended(jobId)).toBe('dead')
  const { rows } = await db.query<{ error_message: string }>({
    text: 'select error_message from leasehold.sync_jobs',
  })
  expect(rows[0]?.error_message).toContain(message)
  expect(rows[0]?.error_message.length).toBeLessThan(600)
})

it('a runner whose checkEveryMs is 0 or no number is refused', () => {
  const sync = createSync()
  sync.define('numbers', { plan, syncChunk })
  expect(() => sync.runner({ checkEveryMs: '10s' as never })).toThrow('checkEveryMs of the runner is 10s')
  expect(() => sync.runner({ checkEveryMs: 0 })).toThrow('checkEveryMs of the runner is 0')
})

it('chunks wait for a source without room without a lease, and reserve no calls that they do not make', async () => {
  const sync = createSync()
  // By chunk: on a slow machine a lease this short may be lost, and its chunk is synced twice.
  const done = new Set<number>()
  const defined = sync.define<number>('slow', {
    plan: () => Array.from({ length: 30 }, (_, n) => n),
    syncChunk: async ({ query }) => Promise.resolve({ rows: done.add(query).size && 1 }),
    source: { name: 'far side', perSecond: 20 },
    concurrency: 20,
    retry: { maxAttempts: 10 },
  })
  const chunks = { leaseMs: 1_500, heartbeatMs: 400, reaperIntervalMs: 500, shutdownTimeoutMs: 500 }
  const { events } = await start(sync.runner({ checkEveryMs: 20, chunks }))
  const jobs = watchJobs(events)
  const { jobId } = await defined.enqueue(db, { matrixId: 'm' })
  expect(await jobs.ended(jobId)).toBe('done')
  expect(done.size).toBe(30)
  const { rows } = await db.query<{ ahead: number }>({
    text: 'select extract(epoch from next_at - now())::float8 as ahead from leasehold.sync_sources',
  })
  expect(rows[0]?.ahead).toBeLessThan(2)
})
