import { checkPrincipal, checkReason } from '../../admin/request-checks.ts'
import type { Database } from '../../postgres/database.ts'
import { isLockConflict } from '../../postgres/failures.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { checkJobId } from './job.ts'
import { tablesOf } from './tables.ts'

/** What an operator says of a change to a job: which, who and why. */
export interface JobChange {
  readonly schema?: string | undefined
  readonly jobId: string
  /** Who asks for it. */
  readonly principal: string
  readonly reason: string
}

export type CheckedChange = JobChange & { readonly schema: string }

export function checkChange(change: JobChange, what: string): CheckedChange {
  checkJobId(change.jobId)
  return {
    schema: change.schema ?? 'leasehold',
    jobId: change.jobId,
    principal: checkPrincipal(change.principal, what),
    reason: checkReason(change.reason),
  }
}

const MOST_TRIES = 5

/**
 * Does it in one transaction, and once more when that was in somebody's way, of which nothing remains: workers settle
 * chunks in whatever order they finish, against which a change of all chunks of a job can deadlock; and a job of the
 * same matrix may have been written at this very moment, which the next try sees.
 */
export async function change<Done>(db: Database, act: (tx: Queryable) => Promise<Done>): Promise<Done> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await db.transaction(act)
    } catch (error) {
      if (!(isLockConflict(error) || isDuplicate(error)) || tries === MOST_TRIES) throw error
    }
  }
}

/** unique_violation */
function isDuplicate(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === '23505'
}

/**
 * Holds every chunk of the job that is not done. A plan that is being written for another job has its links to chunks,
 * which lets nobody hold them like this before it is done: the statement after this one sees who wants what. Where the
 * plan comes later, the look at its job finds what it misses.
 */
export async function holdChunks(tx: Queryable, schema: string, jobId: string): Promise<void> {
  const { checkpoints, links } = tablesOf(schema)
  await tx.query({
    text: `with held as materialized (
  select from ${checkpoints} as c
  join ${links} as l on l.matrix_id = c.matrix_id and l.chunk_hash = c.chunk_hash
  where l.job_id = $1::bigint and c.completed_at is null
  order by c.matrix_id, c.chunk_hash
  for update of c
)
select count(*) from held`,
    values: [jobId],
  })
}
