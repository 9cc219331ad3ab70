/** How a runner learns that the chunks of a job are finished. */
import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { emptySync, watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events } from '../worker/index.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

const JOBS = 200

/** Planned jobs, each of which waits for one chunk that is not due for an hour. Their matrices are m1, m2, … */
async function insertWaitingJobs(count: number, definition = 'numbers'): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({
    text: `with job as (
  insert into leasehold.sync_jobs (definition, matrix_id, planned_at)
  select $2, 'm' || n, now() from generate_series(1, $1::int) as n
  returning id, matrix_id
), chunk as (
  insert into leasehold.sync_checkpoints (matrix_id, chunk_hash, definition, chunk_query, next_attempt_at)
  select matrix_id, 'c', $2, '1', now() + interval '1 hour' from job
  returning matrix_id
), link as (
  insert into leasehold.sync_job_chunks (job_id, matrix_id, chunk_hash) select id, matrix_id, 'c' from job
)
select id::text as id from job order by job.id`,
    values: [count, definition],
  })
  return rows.map(({ id }) => id)
}

async function changeChunk(matrix: string, set: string): Promise<void> {
  await db.query({
    text: `update leasehold.sync_checkpoints set ${set} where matrix_id = $1`,
    values: [matrix],
  })
}

/** Counts how often a job was found unfinished, and waits until each of so many was. */
function countChecks(events: Events): {
  readonly count: () => number
  reached(count: number): Promise<void>
} {
  const checked: string[] = []
  let onCheck: () => void = () => undefined
  events.on('settled', ({ table, outcome, ids }) => {
    if (!table.endsWith('sync_jobs') || outcome !== 'waiting') return
    checked.push(...ids)
    onCheck()
  })
  return {
    count: () => checked.length,
    reached: async (expected) =>
      new Promise((resolve) => {
        onCheck = () => (checked.length >= expected ? resolve() : undefined)
        onCheck()
      }),
  }
}

function definition(onChunkFailure: 'finish' | 'stop' = 'finish') {
  const sync = createSync()
  sync.define<number>('numbers', {
    plan: () => [1],
    syncChunk: async () => Promise.resolve({ rows: 1 }),
    onChunkFailure,
  })
  return sync
}

const DONE = 'completed_at = now(), last_synced_at = now(), row_count = 1'

it('the chunks of a job are counted once after its plan and once at its end, however long it waits for them', async () => {
  const ids = await insertWaitingJobs(JOBS)
  const events = new Events()
  const checks = countChecks(events)
  const ended = watchJobs(events)
  await start(definition().runner({ checkEveryMs: 10 }), { events })
  await checks.reached(JOBS)
  for (const [n, id] of ids.slice(0, 10).entries()) {
    await changeChunk(`m${n + 1}`, DONE)
    expect(await ended.ended(id)).toBe('done')
  }
  expect(checks.count()).toBe(JOBS)
})
