/** How many jobs and chunks there are of each kind. Asked often, so along the indexes, or by PostgreSQL's statistics. */
import { type BrowseOptions, readOnly } from '../../operations/browse.ts'
import { type Count, countRemaining, countUpTo } from '../../operations/count.ts'
import type { Database } from '../../postgres/database.ts'
import { OPEN, tablesOf } from './tables.ts'

export interface SyncCounts {
  readonly open: Count
  readonly completed: Count
  readonly failed: Count
  /** Chunks that are needed and not in flight. */
  readonly chunksWaiting: Count
  readonly chunksLeased: Count
}

export async function countSync(db: Database, options: BrowseOptions = {}): Promise<SyncCounts> {
  const { jobs, checkpoints } = tablesOf(options.schema)
  return readOnly(db, options, { what: 'Counting the jobs', remedy: 'Allow more time.' }, async (tx) => {
    const open = await countUpTo(tx, jobs, OPEN)
    const failed = await countUpTo(tx, jobs, 'failed_at is not null')
    const completed = await countRemaining(tx, jobs, 'completed_at is not null', [open, failed])
    const leased = await countUpTo(tx, checkpoints, 'locked_by is not null')
    const chunksWaiting = await countUpTo(tx, checkpoints, `${OPEN} and needed and locked_by is null`)
    return { open, completed, failed, chunksWaiting, chunksLeased: leased }
  })
}
