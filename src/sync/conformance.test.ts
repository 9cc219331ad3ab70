/** The promises of the kernel, kept by both tables. */
import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { insertSyncChunks, insertSyncJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { leaseConformance } from '../testing/index.ts'
import { chunkTable, jobTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const GROUPS = ['a', 'b'] as const
afterAll(async () => db.close())

/** Ids go on, as they would in use: a row that is deleted never has the id of a later one. */
async function deleteRows(): Promise<void> {
  await db.query({
    text: 'truncate leasehold.sync_jobs, leasehold.sync_checkpoints, leasehold.sync_job_chunks',
  })
}

describe('D5, D6: sync_jobs is a lease table like any other', () => {
  const cases = leaseConformance({
    db,
    table: jobTable(),
    groups: GROUPS,
    empty: deleteRows,
    insert: async (count) => insertSyncJobs(db, count),
    final: { outcome: 'done' },
  })
  it.each(cases.map(({ name, run }) => [name, run] as const))('%s', async (_, run) => {
    await expect(run()).resolves.toBeUndefined()
  })
})

describe('D5, D6: sync_checkpoints is a lease table like any other', () => {
  let matrix = 0
  const cases = leaseConformance({
    db,
    table: chunkTable(),
    groups: GROUPS,
    empty: deleteRows,
    // A row that was deleted does not come back with the same key.
    insert: async (count) => insertSyncChunks(db, count, [`m${(matrix += 1)}`]),
    final: { outcome: 'done', args: { rows: 1 } },
  })
  it.each(cases.map(({ name, run }) => [name, run] as const))('%s', async (_, run) => {
    await expect(run()).resolves.toBeUndefined()
  })
})
