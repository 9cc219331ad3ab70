/**
 * Cancel: an open job has failed, with who and why. What it has synced stays, and a retry takes it up again.
 *
 * - Whoever plans it, or looks at it, is fenced off: the lease is taken from the row, so that no write under it counts,
 *   and a plan in the making adds no more chunks.
 * - Its chunks are wanted no longer, unless another open job wants them too. Those in flight are finished: what they
 *   have brought is as good as ever.
 */
import { audit } from '../../admin/audit.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { unwant } from '../sql.ts'
import { change, checkChange, type CheckedChange, holdChunks, type JobChange } from './change.ts'
import { findJob } from './job.ts'
import { tablesOf } from './tables.ts'

export interface CancelledJob {
  readonly jobId: string
  /** How many chunks nobody waits for any more. */
  readonly dropped: number
  /** How many of these are in flight: they are finished. */
  readonly inFlight: number
}

export const CANCEL_ACTION = 'sync.cancel'

export async function cancelJob(db: Database, options: JobChange): Promise<CancelledJob> {
  const checked = checkChange(options, 'cancel')
  return change(db, async (tx) => cancelIn(tx, checked))
}

async function cancelIn(
  tx: Queryable,
  { schema, jobId, principal, reason }: CheckedChange,
): Promise<CancelledJob> {
  const job = await findJob(tx, schema, jobId, { hold: true })
  if (job.phase === 'completed' || job.phase === 'failed') {
    const why = job.errorMessage === null ? '' : `: ${job.errorMessage}`
    throw new LeaseholdError('JOB_CONFLICT', `The sync job ${jobId} has ${job.phase} already${why}.`, {
      remedy: 'Only a job that is open can be cancelled.',
    })
  }
  await tx.query({
    text: `update ${tablesOf(schema).jobs} set failed_at = now(), error_message = $2::text, locked_by = null, locked_until = null
where id = $1::bigint`,
    values: [jobId, `cancelled by ${principal}: ${reason}`],
  })
  await holdChunks(tx, schema, jobId)
  const { rowCount } = await tx.query(unwant(schema, jobId))
  const dropped = rowCount ?? 0
  const inFlight = dropped === 0 ? 0 : await countInFlight(tx, schema, jobId)
  const details = { reason, definition: job.definition, matrixId: job.matrixId, dropped, inFlight }
  await audit(tx, schema, { principal, action: CANCEL_ACTION, target: jobId, details })
  return { jobId, dropped, inFlight }
}

async function countInFlight(tx: Queryable, schema: string, jobId: string): Promise<number> {
  const { checkpoints, links } = tablesOf(schema)
  const { rows } = await tx.query<{ count: number }>({
    text: `select count(*)::int as count from ${checkpoints} as c
join ${links} as l on l.matrix_id = c.matrix_id and l.chunk_hash = c.chunk_hash
where l.job_id = $1::bigint and c.locked_by is not null and c.locked_until > now() and not c.wanted`,
    values: [jobId],
  })
  return rows[0]?.count ?? 0
}
