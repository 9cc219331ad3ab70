/** The rate of a far side, shared by all who call it. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { emptySync, gate, watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import type { SyncSource } from './definition.ts'
import { reserve } from './sql.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

describe('a reserved call', () => {
  /** How long to wait for each of these calls, reserved at one moment. */
  async function waits(source: SyncSource, ...calls: readonly number[]): Promise<number[]> {
    return db.transaction(async (tx) => {
      const answers: number[] = []
      for (const count of calls) {
        const { rows } = await tx.query<{ wait_ms: number }>(reserve('leasehold', source, count, Infinity))
        answers.push(Math.round(rows[0]?.wait_ms ?? Number.NaN))
      }
      return answers
    })
  }

  it('waits for the calls reserved before it', async () => {
    const office = { name: 'office', perSecond: 4 }
    expect(await waits(office, 1, 1, 1, 2)).toEqual([0, 250, 500, 1_000])
  })

  it('does not wait for those of another source', async () => {
    expect(await waits({ name: 'a', perSecond: 1 }, 1, 1)).toEqual([0, 1_000])
    expect(await waits({ name: 'b', perSecond: 1 }, 1)).toEqual([0])
  })

  it('does not wait within the burst after a time without calls, however long that was', async () => {
    const office = { name: 'office', perSecond: 2, burst: 3 }
    expect(await waits(office, 1, 1, 1, 1)).toEqual([0, 0, 0, 500])
    await db.query({ text: `update leasehold.sync_sources set next_at = now() - interval '1 day'` })
    expect(await waits(office, 1, 1, 1, 1, 1)).toEqual([0, 0, 0, 500, 1_000])
  })
})

it('two runners together call a source no more often than it allows', async () => {
  const [PER_SECOND, CHUNKS] = [50, 30]
  const calls: { readonly runner: string; readonly at: number }[] = []
  let began = 0
  const both = gate()
  const runnerOf = (runner: string) => {
    const sync = createSync()
    const defined = sync.define<number>('limited', {
      plan: () => {
        began = performance.now()
        return Array.from({ length: CHUNKS }, (_, n) => n)
      },
      syncChunk: async (_, { call }) => {
        calls.push({ runner, at: performance.now() })
        if (new Set(calls.map((made) => made.runner)).size === 2) both.open()
        // A second call of the same chunk waits for its place as well. Nobody goes on before both runners have begun.
        await both.opened
        await call()
        calls.push({ runner, at: performance.now() })
        return { rows: 1 }
      },
      concurrency: 5,
      source: { name: 'office', perSecond: PER_SECOND },
    })
    return { defined, workers: sync.runner({ checkEveryMs: 20 }) }
  }
  const [a, b] = [runnerOf('a'), runnerOf('b')]
  const { jobId } = await a.defined.enqueue(db, { matrixId: 'm' })
  const running = [await start(a.workers), await start(b.workers)]
  expect(await watchJobs(...running.map(({ events }) => events)).ended(jobId)).toBe('done')

  expect(calls).toHaveLength(2 * CHUNKS)
  // Each may be late, and none is early: the last one has waited for all the others. A timer may miss by a millisecond.
  const last = Math.max(...calls.map(({ at }) => at))
  expect(last - began).toBeGreaterThanOrEqual(((2 * CHUNKS - 1) / PER_SECOND) * 1_000 - 10)
})

it('a runner that has to stop while waiting for a call releases its chunk and makes no call', async () => {
  const sync = createSync()
  let calls = 0
  const slow = sync.define<number>('slow', {
    plan: () => [1, 2],
    syncChunk: async () => {
      calls += 1
      return Promise.resolve({ rows: 1 })
    },
    source: { name: 'slow', perSecond: 0.001 },
  })
  const { runtime, events } = await start(sync.runner({ checkEveryMs: 20 }))
  const first = events.next('settled', ({ table }) => table.endsWith('checkpoints'))
  await slow.enqueue(db, { matrixId: 'm' })
  await first
  const { rows } = await db.query({
    text: `select 1 from leasehold.sync_checkpoints where locked_by is not null`,
  })
  expect(rows).toHaveLength(1)
  expect(await runtime.stop()).toEqual({ clean: true })
  const left = await db.query({
    text: 'select locked_by, attempts from leasehold.sync_checkpoints where completed_at is null',
  })
  expect(left.rows).toEqual([{ locked_by: null, attempts: 0 }])
  expect(calls).toBe(1)
})
