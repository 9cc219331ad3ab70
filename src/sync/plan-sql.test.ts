/** The statements of the runner on their own: what a plan may write, and which chunks an ended job leaves needed. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { emptySync, syncChunks, syncJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import * as statements from './sql.ts'
import { type HeldJob, type PlannedChunk, unmarkNeeded, markNeeded, writeChunks } from './sql.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const db = openDatabase({ url })

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

const CHUNKS: readonly PlannedChunk[] = ['a', 'b'].map((hash, position) => ({
  hash,
  query: `"${hash}"`,
  position,
}))

/** A job that `planner` holds. */
async function heldJob(options: { force?: boolean; priority?: number } = {}): Promise<HeldJob> {
  const { jobId } = await createSync().enqueue(db, 'd', { matrixId: 'm', parallel: true, ...options })
  await change(jobId, "locked_by = 'planner', locked_until = now() + interval '1 minute', lock_token = 1")
  return { id: jobId, owner: 'planner', token: 1n }
}

async function change(jobId: string, set: string): Promise<void> {
  await db.query({ text: `update leasehold.sync_jobs set ${set} where id = $1`, values: [jobId] })
}

async function changeChunk(hash: string, set: string): Promise<void> {
  await db.query({
    text: `update leasehold.sync_checkpoints set ${set} where chunk_hash = $1`,
    values: [hash],
  })
}

async function links(): Promise<object[]> {
  const text =
    'select job_id as job, chunk_hash as hash, skipped from leasehold.sync_job_chunks order by 1, 2'
  return (await db.query({ text })).rows
}

const COMPLETED =
  'completed_at = now(), last_synced_at = now(), row_count = 1, attempts = 0, locked_by = null, locked_until = null'

describe('a plan', () => {
  it.each([
    ['the lease is over', "locked_until = now() - interval '1 second'"],
    ['another has claimed it', "locked_by = 'heir', lock_token = 2"],
    ['it was claimed again under the same name', 'lock_token = 2'],
    ['the job has ended', 'failed_at = now(), locked_by = null, locked_until = null'],
  ])('D6: writes nothing when %s', async (_, set) => {
    const job = await heldJob()
    await change(job.id, set)
    const before = await syncJobs(db)
    expect((await db.query(writeChunks('leasehold', job, CHUNKS))).rows).toEqual([])
    expect(await syncChunks(db)).toEqual([])
    expect(await links()).toEqual([])
    expect(await syncJobs(db)).toEqual(before)
  })

  it('written a second time changes neither synced chunks, nor chunks in flight, nor chunks that wait for a retry', async () => {
    const job = await heldJob({ force: true })
    const chunks = [...CHUNKS, { hash: 'c', query: '"c"', position: 2 }]
    await db.query(writeChunks('leasehold', job, chunks))
    await changeChunk('a', COMPLETED)
    await changeChunk('b', "locked_by = 'w', locked_until = now() + interval '1 minute', lock_token = 1")
    await changeChunk(
      'c',
      "attempts = 2, next_attempt_at = now() + interval '1 hour', error_message = 'busy'",
    )
    const before = [await syncChunks(db), await links()]
    await db.query(writeChunks('leasehold', job, chunks))
    expect([await syncChunks(db), await links()]).toEqual(before)
  })

  it('of a forced job does not restart a chunk in flight', async () => {
    const first = await heldJob()
    await db.query(writeChunks('leasehold', first, CHUNKS))
    await changeChunk(
      'a',
      "locked_by = 'w', locked_until = now() + interval '1 minute', lock_token = 1, needed = false",
    )
    const second = await heldJob({ force: true })
    await db.query(writeChunks('leasehold', second, CHUNKS))
    expect((await syncChunks(db))[0]).toMatchObject({ state: 'RUNNING', needed: true, lock_token: '1' })
    expect(await links()).toHaveLength(4)
  })

  it('of a job with a higher priority raises the priority of chunks that are marked as needed anew', async () => {
    const first = await heldJob()
    await db.query(writeChunks('leasehold', first, CHUNKS))
    await changeChunk('a', COMPLETED)
    const second = await heldJob({ force: true, priority: 9 })
    await db.query(writeChunks('leasehold', second, CHUNKS))
    expect((await syncChunks(db))[0]).toMatchObject({ state: 'AVAILABLE', priority: 9 })
  })

  it('of a job with a higher priority raises the priority of chunks that wait for another job', async () => {
    const first = await heldJob()
    await db.query(writeChunks('leasehold', first, CHUNKS))
    const second = await heldJob({ priority: 9 })
    await db.query(writeChunks('leasehold', second, CHUNKS))
    expect((await syncChunks(db)).map(({ priority }) => priority)).toEqual([9, 9])
  })
})

it('chunks of an ended job are no longer needed, except those that another job waits for', async () => {
  const [ending, other] = [await heldJob(), await heldJob()]
  await db.query(writeChunks('leasehold', ending, CHUNKS))
  await db.query(writeChunks('leasehold', other, CHUNKS.slice(0, 1)))
  await db.query(unmarkNeeded('leasehold', ending.id))
  expect((await syncChunks(db)).map(({ chunk_hash: hash, needed }) => [hash, needed])).toEqual([
    ['a', true],
    ['b', false],
  ])
  await db.query(unmarkNeeded('leasehold', other.id))
  expect((await syncChunks(db)).map(({ needed }) => needed)).toEqual([true, false])
  await change(ending.id, 'failed_at = now(), locked_by = null, locked_until = null')
  await db.query(unmarkNeeded('leasehold', other.id))
  expect((await syncChunks(db)).map(({ needed }) => needed)).toEqual([false, false])
  // A job that still waits for them says so again.
  await db.query(markNeeded('leasehold', other.id))
  expect((await syncChunks(db)).map(({ needed }) => needed)).toEqual([true, false])
})

it('RULE-020-040: a plan does not wait for a job that another session has locked, writes nothing, and says so', async () => {
  const job = await heldJob()
  const { rows } = await db.transaction(async (other) => {
    await other.query({
      text: 'select from leasehold.sync_jobs where id = $1 for update',
      values: [job.id],
    })
    return db.transaction(async (tx) => {
      // What waits fails.
      await tx.query({ text: "set local lock_timeout = '200ms'" })
      return tx.query(writeChunks('leasehold', job, CHUNKS))
    })
  })
  expect(rows).toEqual([{ written: false }])
  expect(await syncChunks(db)).toEqual([])
  expect((await db.query(writeChunks('leasehold', job, CHUNKS))).rows).toEqual([{ written: true }])
  expect(await links()).toHaveLength(2)
})

it('RULE-020-040: every row lock of the statements of the runner skips what is locked', () => {
  const source = { name: 's', perSecond: 1 }
  const job = { id: '1', owner: 'w', token: 1n }
  const all = [
    writeChunks('leasehold', job, CHUNKS),
    statements.countOpen('leasehold', '1'),
    markNeeded('leasehold', '1'),
    unmarkNeeded('leasehold', '1'),
    statements.reserve('leasehold', source, 1, 1),
    statements.wakeChunks('leasehold'),
    statements.makeDue('leasehold', [], []),
  ]
  // A new statement belongs into this list.
  expect(all).toHaveLength(Object.keys(statements).length)
  const locks = all.flatMap(
    ({ text }) => text.match(/\bfor (?:no key )?(?:key )?(?:update|share)\b.*$/gim) ?? [],
  )
  expect(locks).toHaveLength(2)
  for (const lock of locks) expect(lock).toMatch(/ skip locked$/)
})
