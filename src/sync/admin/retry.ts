/**
 * Retry: a failed job is open again, and only what has failed of it is done once more.
 *
 * - Failed chunks are as if they had never been tried; those that were dropped, because the job was cancelled or had to
 *   stop at the first failure, are wanted again. What was synced is not fetched again.
 * - A job that failed before all of its chunks were known is planned again.
 */
import { audit } from '../../admin/audit.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { change, checkChange, type CheckedChange, holdChunks, type JobChange } from './change.ts'
import { findJob, type JobSummary } from './job.ts'
import { tablesOf } from './tables.ts'

export interface RetriedJob {
  readonly jobId: string
  /** How many failed chunks are tried again. */
  readonly failed: number
  /** How many that were dropped are wanted again. */
  readonly dropped: number
  /** It is planned again: not all of its chunks were known. */
  readonly planned: boolean
}

export const RETRY_ACTION = 'sync.retry'

export async function retryFailed(db: Database, options: JobChange): Promise<RetriedJob> {
  const checked = checkChange(options, 'retry')
  return change(db, async (tx) => retryIn(tx, checked))
}

async function retryIn(
  tx: Queryable,
  { schema, jobId, principal, reason }: CheckedChange,
): Promise<RetriedJob> {
  const job = await findJob(tx, schema, jobId, { hold: true })
  if (job.phase !== 'failed') {
    const is = job.phase === 'completed' ? 'is completed' : `is open (${job.phase})`
    throw new LeaseholdError('JOB_CONFLICT', `The sync job ${jobId} ${is}, and has not failed.`, {
      remedy: 'Only a job that has failed can be retried; to sync again, enqueue a job with force.',
    })
  }
  await reopen(tx, schema, job)
  await holdChunks(tx, schema, jobId)
  const { failed, dropped } = await wantAgain(tx, schema, jobId)
  const planned = job.plannedAt === null
  const { definition, matrixId, errorMessage } = job
  const details = { reason, definition, matrixId, failed, dropped, planned, errorMessage }
  await audit(tx, schema, { principal, action: RETRY_ACTION, target: jobId, details })
  const wake = quoteQualified(schema, 'wake')
  await tx.query({ text: `select ${wake}('sync-jobs'), ${wake}('sync')` })
  return { jobId, failed, dropped, planned }
}

/** Two open jobs of a matrix are one too many, unless this one may run beside others. */
async function reopen(tx: Queryable, schema: string, job: JobSummary): Promise<void> {
  const { jobs } = tablesOf(schema)
  if (!job.parallel) {
    const { rows } = await tx.query<{ id: string }>({
      text: `select id::text as id from ${jobs}
where definition = $1::text and matrix_id = $2::text and completed_at is null and failed_at is null and not parallel`,
      values: [job.definition, job.matrixId],
    })
    const [other] = rows
    if (other !== undefined) throw inTheWay(job, other.id)
  }
  await tx.query({
    text: `update ${jobs} set failed_at = null, error_message = null, attempts = 0, expiries = 0, next_check_at = now() where id = $1::bigint`,
    values: [job.id],
  })
}

async function wantAgain(
  tx: Queryable,
  schema: string,
  jobId: string,
): Promise<Pick<RetriedJob, 'failed' | 'dropped'>> {
  const { checkpoints, links } = tablesOf(schema)
  const ofJob = `from ${links} as l
where l.job_id = $1::bigint and c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash and c.completed_at is null`
  const values = [jobId]
  // These first: the failed ones are wanted anyhow.
  const dropped = await tx.query({
    text: `update ${checkpoints} as c set wanted = true ${ofJob} and c.failed_at is null and not c.wanted`,
    values,
  })
  const failed = await tx.query({
    text: `update ${checkpoints} as c set wanted = true, failed_at = null, error_message = null, attempts = 0, expiries = 0,
  next_attempt_at = now()
${ofJob} and c.failed_at is not null`,
    values,
  })
  return { failed: failed.rowCount ?? 0, dropped: dropped.rowCount ?? 0 }
}

function inTheWay({ id, matrixId }: JobSummary, other: string): LeaseholdError {
  return new LeaseholdError(
    'JOB_CONFLICT',
    `The sync job ${id} cannot be retried: job ${other} of the same matrix, ${matrixId}, is open.`,
    { remedy: `Job ${other} does what has failed as well if its plan has it; otherwise wait for its end.` },
  )
}
