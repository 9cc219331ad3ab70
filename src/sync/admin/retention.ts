/**
 * Deletes jobs that ended long ago. Their checkpoints stay: they say what is synced, and the next job skips it.
 *
 * Any number of processes may do this at once: each statement is short, and skips what somebody else has locked.
 */
import {
  type BatchPacing,
  DAY_MS,
  inBatches,
  type RetentionCall,
  type RetentionRun,
  startRetention,
} from '../../operations/retention.ts'
import type { Database } from '../../postgres/database.ts'
import type { Statement } from '../../postgres/queryable.ts'
import { tablesOf } from './tables.ts'

/** How long ended jobs are retained, and in which batches they are deleted. */
export interface SyncRetention extends BatchPacing {
  /** How long a completed job is retained. Null: for ever. Default 30 days. */
  readonly completedMs?: number | null | undefined
  /** How long a failed job is retained. Null: for ever. Default 30 days. */
  readonly failedMs?: number | null | undefined
}

export interface SyncRetentionOptions extends SyncRetention, RetentionCall {}

export type SyncRetentionResult = {
  /** How many jobs were deleted. */
  readonly jobs: number
  /** How many chunks were no longer needed: two jobs that ended at the same time each took the other for open. */
  readonly unneeded: number
}

/** Deletes what is old enough now. */
export async function applyRetention(
  db: Database,
  options: SyncRetentionOptions = {},
): Promise<SyncRetentionResult> {
  const { completedMs = 30 * DAY_MS, failedMs = 30 * DAY_MS } = options
  const run = startRetention(options, { completedMs, failedMs })
  const unneeded = await inBatches(run, async () => {
    const changed = (await db.query(unmarkOrphaned(run))).rowCount ?? 0
    return { changed, more: changed === run.batch }
  })
  const deleteEnded = async (end: 'completed_at' | 'failed_at', keepMs: number | null): Promise<number> => {
    if (keepMs === null) return 0
    return inBatches(run, async () => {
      const changed = (await db.query(deleteEndedSql(run, end, keepMs))).rowCount ?? 0
      return { changed, more: changed > 0 }
    })
  }
  const completed = await deleteEnded('completed_at', completedMs)
  return { jobs: completed + (await deleteEnded('failed_at', failedMs)), unneeded }
}

/** Open chunks that belong to no open job. Those in flight are finished. */
function unmarkOrphaned({ schema, batch }: RetentionRun): Statement {
  const { jobs, links, checkpoints } = tablesOf(schema)
  return {
    text: `with orphaned as materialized (
  select c.matrix_id, c.chunk_hash
  from ${checkpoints} as c
  where c.completed_at is null and c.failed_at is null and c.needed
    and not exists (
      select from ${links} as l join ${jobs} as j on j.id = l.job_id
      where l.matrix_id = c.matrix_id and l.chunk_hash = c.chunk_hash
        and j.completed_at is null and j.failed_at is null
    )
  limit $1::int
  for update of c skip locked
)
update ${checkpoints} as c set needed = false
from orphaned as o
where c.matrix_id = o.matrix_id and c.chunk_hash = o.chunk_hash`,
    values: [batch],
  }
}

/**
 * Jobs that ended long ago, by the clock of the database and counted from their end (D11). A job is deleted whole, because
 * an operator could replay one of which half is missing. It takes the links to its chunks with it, so these are what the
 * batch counts: several jobs with up to that many links together, or one larger job alone.
 */
function deleteEndedSql(
  { schema, batch }: RetentionRun,
  end: 'completed_at' | 'failed_at',
  keepMs: number,
): Statement {
  const { jobs, links } = tablesOf(schema)
  return {
    text: `with ended as materialized (
  select id from ${jobs}
  where ${end} < now() - $1::float8 * interval '1 millisecond'
  order by ${end}, id limit $2::int
  for update skip locked
),
sized as materialized (
  select id, 1 + (select count(*) from ${links} as l where l.job_id = ended.id) as size from ended
),
summed as materialized (select id, size, sum(size) over (order by id) as up_to_here from sized)
delete from ${jobs}
where id = any (array(
  select id from summed where up_to_here <= $2::int or up_to_here = size
))`,
    values: [keepMs, batch],
  }
}
