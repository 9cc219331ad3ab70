import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { openDatabase } from '../postgres/database.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)

beforeEach(async () =>
  db.query({ text: 'truncate leasehold.sync_jobs, leasehold.sync_checkpoints, leasehold.sync_job_chunks' }),
)
afterAll(async () => db.close())

it('a job is planned, its chunks are synced, and it is completed', async () => {
  const sync = createSync()
  const done: unknown[] = []
  const numbers = sync.define<{ n: number }>('numbers', {
    plan: async ({ matrixId }) => [1, 2, 3].map((n) => ({ n, of: matrixId })),
    syncChunk: async ({ query }) => {
      done.push(query)
      return { rows: query.n }
    },
  })
  const { events } = await start(sync.runner({ checkEveryMs: 20 }))
  const completed = events.next(
    'settled',
    ({ table, outcome }) => table.endsWith('sync_jobs') && outcome === 'done',
  )
  const { jobId, created } = await numbers.enqueue(db, { matrixId: 'm' })
  expect(created).toBe(true)
  await completed
  expect(done).toHaveLength(3)
  const { rows } = await db.query({ text: 'select id, state from leasehold.sync_job_states' })
  expect(rows).toEqual([{ id: jobId, state: 'COMPLETED' }])
  const chunks = await db.query({
    text: 'select state, row_count from leasehold.sync_checkpoint_states order by position',
  })
  expect(chunks.rows).toEqual([1, 2, 3].map((n) => ({ state: 'COMPLETED', row_count: String(n) })))
})
