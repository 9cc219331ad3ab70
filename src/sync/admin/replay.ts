/**
 * Replay: failed jobs are open once more, and only what has failed of them is synced.
 *
 * - Failed chunks are as if they had never been tried. Chunks that were dropped, because the job was cancelled or stopped
 *   at a failure, are needed once more. What was synced is not fetched once more.
 * - A job that failed before all of its chunks were known is planned once more.
 * - A job is not replayed while another job of its matrix is open, unless it may run in parallel. Of several failed jobs of
 *   a matrix, the one that failed first is replayed.
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
import { lockChunks } from './chunks.ts'
import {
  checkFilter,
  FILTER_DATES,
  filterSql,
  findNamed,
  type JobFilter,
  narrowSql,
  requireNumberedJobs,
} from './jobs.ts'
import { tablesOf } from './tables.ts'

export type ReplayOptions = BulkChangeOptions<JobFilter>

/**
 * `conflicting`: how many more jobs match and are not replayed, because another job of their matrix is open or replayed.
 * `failedChunks` and `droppedChunks`: how many chunks will be synced. `unplanned`: how many jobs are planned once more.
 */
export type ReplayResult = BulkChangeResult<ReplayCount>

type ReplayCount = 'conflicting' | 'failedChunks' | 'droppedChunks' | 'unplanned'

const FAILED = 'failed_at is not null'

export const REPLAY: BulkChange<JobFilter, ReplayCount> = {
  action: 'sync.replay',
  row: 'job',
  rows: 'jobs',
  table: 'sync_jobs',
  bucketed: false,
  batchSize: 1,
  checkFilter(filter) {
    checkFilter(filter)
    const other = filter.states?.find((state) => state !== 'FAILED')
    if (other !== undefined) throw invalid('states', other, 'Only FAILED jobs are replayed.')
  },
  dates: FILTER_DATES,
  scans: () => [
    {
      orderedBy: 'failed_at',
      narrow: (filter, parameter) => `${FAILED} and ${narrowSql(filter, parameter)}`,
      where: (filter, parameter, schema) => `${FAILED} and ${filterSql(filter, parameter, schema)}`,
    },
  ],
  guard: (schema) => `${FAILED} and (r.parallel or ${noOpenJob(schema)})`,
  onePer: {
    value: 'case when parallel then id::text else definition || chr(1) || matrix_id end',
    why: 'another job of the same matrix is replayed',
  },
  counts: (schema) => ({
    conflicting: `count(*) filter (where not parallel)
    - count(distinct definition || chr(1) || matrix_id) filter (where not parallel and ${noOpenJob(schema)})`,
    failedChunks: null,
    droppedChunks: null,
    unplanned: null,
  }),
  previewCounts: countReopened,
  set: () => 'failed_at = null, error_message = null, attempts = 0, expiries = 0',
  dueColumn: 'next_check_at',
  afterBatch: reopenChunks,
  wakes: ['sync-jobs', 'sync'],
  findNamed: async (db, schema, { ids }) => {
    const open = await openJobs(db, schema, ids)
    return findNamed(db, schema, ids, ({ id, phase, parallel, matrixId }) => {
      if (phase === 'completed')
        return 'it is completed; to sync its matrix once more, enqueue a job with force'
      if (phase !== 'failed') return `it is open (${phase}), and has not failed`
      const other = open.get(id)
      return other === undefined || parallel
        ? undefined
        : `job ${other} of the same matrix, ${matrixId}, is open; wait for its end, or cancel it`
    })
  },
}

/** Replays failed jobs by their ids or by a filter. */
export async function replay(db: Database, options: ReplayOptions): Promise<ReplayResult> {
  await requireNumberedJobs(db, options.schema)
  return runBulkChange(db, REPLAY, options)
}

/** Continues a replay that was stopped or killed: the same jobs at the same rate, for the same reason. */
export async function resumeReplay(
  db: Database,
  changeId: string,
  options: ResumeOptions,
): Promise<ReplayResult> {
  return resumeBulkChange(db, REPLAY, changeId, options)
}

/** Two open jobs of a matrix are one too many; a unique index refuses the second. */
function noOpenJob(schema: string): string {
  return `not exists (
    select from ${tablesOf(schema).jobs} as other
    where other.definition = r.definition and other.matrix_id = r.matrix_id
      and other.completed_at is null and other.failed_at is null and not other.parallel
  )`
}

/** The open job of the same matrix, for each of these jobs that has one. */
async function openJobs(
  db: Queryable,
  schema: string,
  ids: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const { jobs } = tablesOf(schema)
  const { rows } = await db.query<{ id: string; other: string }>({
    text: `select r.id::text as id, other.id::text as other
from ${jobs} as r join ${jobs} as other on other.definition = r.definition and other.matrix_id = r.matrix_id
where r.id = any ($1::bigint[]) and other.id <> r.id
  and other.completed_at is null and other.failed_at is null and not other.parallel`,
    values: [ids],
  })
  return new Map(rows.map(({ id, other }) => [id, other]))
}

/** What `reopenChunks` would count if all of these jobs were replayed. Jobs may share chunks. */
async function countReopened(
  db: Queryable,
  schema: string,
  ids: readonly string[],
): Promise<Readonly<Partial<Record<ReplayCount, number>>>> {
  const { jobs, checkpoints, links } = tablesOf(schema)
  const { rows } = await db.query<Record<'failedChunks' | 'droppedChunks' | 'unplanned', number>>({
    text: `with reopened as materialized (
  select distinct c.matrix_id, c.chunk_hash, c.failed_at is not null as failed
  from ${links} as l join ${checkpoints} as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
  where l.job_id = any ($1::bigint[]) and c.completed_at is null and (c.failed_at is not null or not c.needed)
)
select (count(*) filter (where failed))::int as "failedChunks", (count(*) filter (where not failed))::int as "droppedChunks",
  (select count(*)::int from ${jobs} where id = any ($1::bigint[]) and planned_at is null) as unplanned
from reopened`,
    values: [ids],
  })
  return rows[0] ?? {}
}

async function reopenChunks(
  tx: Queryable,
  { schema, ids, lastDueSeconds }: ChangedBatch,
): Promise<Readonly<Partial<Record<ReplayCount, number>>>> {
  const { jobs, checkpoints, links } = tablesOf(schema)
  await lockChunks(tx, schema, ids)
  const ofJobs = `from ${links} as l
where l.job_id = any ($1::bigint[]) and c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
  and c.completed_at is null`
  const values = [ids, lastDueSeconds]
  // The dropped ones first: afterwards the failed ones could not be told from them.
  const dropped = await tx.query({
    text: `update ${checkpoints} as c set needed = true, next_attempt_at = greatest(c.next_attempt_at, to_timestamp($2::float8))
${ofJobs} and c.failed_at is null and not c.needed`,
    values,
  })
  const failed = await tx.query({
    text: `update ${checkpoints} as c set needed = true, failed_at = null, error_message = null, attempts = 0, expiries = 0,
  next_attempt_at = to_timestamp($2::float8)
${ofJobs} and c.failed_at is not null`,
    values,
  })
  const unplanned = await tx.query({
    text: `select from ${jobs} where id = any ($1::bigint[]) and planned_at is null`,
    values: [ids],
  })
  return {
    failedChunks: failed.rowCount ?? 0,
    droppedChunks: dropped.rowCount ?? 0,
    unplanned: unplanned.rowCount ?? 0,
  }
}
