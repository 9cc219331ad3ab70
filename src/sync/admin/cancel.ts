/**
 * Cancel: open jobs fail, with who and why. What they have synced stays, and a replay opens them once more.
 *
 * - A worker that plans a job, or checks its chunks, is fenced off: the lease is taken from the row, so that no write under
 *   it counts and the plan adds no more chunks. This is the one bulk change that takes a lease, because a plan may run for
 *   hours; the token stays, and a later claim makes it grow.
 * - Its chunks are no longer needed, unless another open job needs them too. Those in flight keep their lease and are
 *   finished.
 * - Each job is a transaction of its own, because it may have very many chunks.
 */
import {
  type BulkChange,
  type BulkChangeOptions,
  type BulkChangeResult,
  type ChangedBatch,
  resumeBulkChange,
  type ResumeOptions,
  runBulkChange,
} from '../../operations/bulk-change.ts'
import { invalid } from '../../operations/request-checks.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { unmarkNeeded } from '../sql.ts'
import { countDroppable, countUnneededInFlight, lockChunks } from './chunks.ts'
import {
  checkFilter,
  FILTER_DATES,
  filterSql,
  findNamed,
  type JobFilter,
  narrowSql,
  requireNumberedJobs,
} from './jobs.ts'
import { OPEN } from './tables.ts'

export type CancelOptions = BulkChangeOptions<JobFilter>

/** `droppedChunks`: how many chunks no job waits for any more. `inFlight`: how many of these are in flight, and finished. */
export type CancelResult = BulkChangeResult<CancelCount>

type CancelCount = 'droppedChunks' | 'inFlight'

export const CANCEL: BulkChange<JobFilter, CancelCount> = {
  action: 'sync.cancel',
  row: 'job',
  rows: 'jobs',
  table: 'sync_jobs',
  bucketed: false,
  batchSize: 1,
  checkFilter(filter) {
    checkFilter(filter)
    const ended = filter.states?.find((state) => state === 'COMPLETED' || state === 'FAILED')
    if (ended !== undefined) throw invalid('states', ended, 'Only open jobs can be cancelled.')
    if (filter.failedSince === undefined) return
    throw invalid('failedSince', filter.failedSince, 'Leave it out: only open jobs can be cancelled.')
  },
  dates: FILTER_DATES,
  scans: () => [
    {
      narrow: (filter, parameter) => `${OPEN} and ${narrowSql(filter, parameter)}`,
      where: (filter, parameter, schema) => `${OPEN} and ${filterSql(filter, parameter, schema)}`,
    },
  ],
  guard: () => OPEN,
  counts: () => ({ droppedChunks: null, inFlight: null }),
  previewCounts: countDroppable,
  set: ({ principal, reason }, parameter) =>
    `failed_at = now(), error_message = ${parameter(`cancelled by ${principal}: ${reason}`, 'text')}, locked_by = null,
    locked_until = null`,
  afterBatch: dropChunks,
  wakes: [],
  findNamed: async (db, schema, { ids }) =>
    findNamed(db, schema, ids, ({ phase, errorMessage }) => {
      if (phase !== 'completed' && phase !== 'failed') return undefined
      return `it has ${phase} already${errorMessage === null ? '' : `: ${errorMessage}`}`
    }),
}

/** Cancels open jobs by their ids or by a filter. */
export async function cancel(db: Database, options: CancelOptions): Promise<CancelResult> {
  await requireNumberedJobs(db, options.schema)
  return runBulkChange(db, CANCEL, options)
}

/** Continues a cancel that was stopped or killed. */
export async function resumeCancel(
  db: Database,
  changeId: string,
  options: ResumeOptions,
): Promise<CancelResult> {
  return resumeBulkChange(db, CANCEL, changeId, options)
}

async function dropChunks(
  tx: Queryable,
  { schema, ids }: ChangedBatch,
): Promise<Readonly<Record<CancelCount, number>>> {
  await lockChunks(tx, schema, ids)
  let droppedChunks = 0
  for (const id of ids) droppedChunks += (await tx.query(unmarkNeeded(schema, id))).rowCount ?? 0
  const inFlight = droppedChunks === 0 ? 0 : await countUnneededInFlight(tx, schema, ids)
  return { droppedChunks, inFlight }
}
