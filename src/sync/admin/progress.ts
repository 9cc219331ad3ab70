/** How far a job has come, how quickly it goes on, who works on what, and what has failed. */
import { type BrowseOptions, looking } from '../../admin/looking.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { type ChunkSummary, findChunks } from './chunks.ts'
import { type ChunkCounts, countChunks } from './counts.ts'
import { findJob, jobColumns, type JobRow, jobSummary, type JobSummary } from './job.ts'
import { paceOf, timeLeft } from './pace.ts'
import { tablesOf } from './tables.ts'

export interface JobProgress extends JobSummary {
  readonly chunks: ChunkCounts
  /** How many rows its chunks have brought, without those that were skipped. */
  readonly rows: number
  /** Over the recent past; undefined when nothing is known of it, or the job has ended. */
  readonly rowsPerSecond: number | undefined
  readonly chunksPerMinute: number | undefined
  /** At that pace; undefined when it is unknown, as while the job is being planned. */
  readonly timeLeftMs: number | undefined
  /** Chunks in flight, at most 20: `lockedBy` works on them. */
  readonly working: readonly ChunkSummary[]
  /** Chunks that were given up, the first ten. */
  readonly failures: readonly ChunkSummary[]
}

const MOST_WORKING = 20
const MOST_FAILURES = 10

export async function progress(
  db: Database,
  jobId: string,
  options: BrowseOptions = {},
): Promise<JobProgress> {
  const { schema } = options
  return looking(db, options, COUNTING, async (tx) =>
    progressOf(tx, schema, await findJob(tx, schema, jobId)),
  )
}

export interface ProgressOfAll {
  /** The open ones in the order in which they are worked on, then those that failed lately. */
  readonly jobs: readonly JobProgress[]
  /** There are more open jobs. */
  readonly more: boolean
}

export interface ProgressOfAllOptions extends BrowseOptions {
  /** The most open jobs. Default 20. */
  readonly limit?: number | undefined
  /** Also those that have failed within this time. Default: a day. */
  readonly failedWithinMs?: number | undefined
}

const DAY_MS = 86_400_000
const MOST_FAILED = 5

export async function progressOfAll(
  db: Database,
  options: ProgressOfAllOptions = {},
): Promise<ProgressOfAll> {
  const { schema, limit = 20, failedWithinMs = DAY_MS } = options
  return looking(db, options, COUNTING, async (tx) => {
    const { jobs } = tablesOf(schema)
    const open = await tx.query<JobRow>({
      text: `select ${jobColumns(schema)} from ${jobs} as j where completed_at is null and failed_at is null
order by priority desc, created_at, j.id limit $1::int`,
      values: [limit + 1],
    })
    const failed = await tx.query<JobRow>({
      text: `select ${jobColumns(schema)} from ${jobs} as j where failed_at > now() - $1::float8 * interval '1 millisecond'
order by failed_at desc, j.id desc limit $2::int`,
      values: [failedWithinMs, MOST_FAILED],
    })
    const found: JobProgress[] = []
    for (const row of [...open.rows.slice(0, limit), ...failed.rows]) {
      found.push(await progressOf(tx, schema, jobSummary(row)))
    }
    return { jobs: found, more: open.rows.length > limit }
  })
}

const COUNTING = { what: 'counting the chunks', remedy: 'Allow more time.' }

async function progressOf(tx: Queryable, schema: string | undefined, job: JobSummary): Promise<JobProgress> {
  const { chunks, rows, ...recent } = await countChunks(tx, schema, job)
  const ended = job.phase === 'completed' || job.phase === 'failed'
  const pace = ended ? undefined : paceOf(recent)
  const known = job.phase === 'syncing'
  return {
    ...job,
    chunks,
    rows,
    rowsPerSecond: pace?.rowsPerSecond,
    chunksPerMinute: pace?.chunksPerMinute,
    timeLeftMs: known ? timeLeft(pace, chunks.waiting + chunks.running) : undefined,
    working: chunks.running === 0 ? [] : await working(tx, schema, job),
    failures: chunks.failed === 0 ? [] : await failures(tx, schema, job),
  }
}

async function working(tx: Queryable, schema: string | undefined, job: JobSummary): Promise<ChunkSummary[]> {
  return findChunks(tx, schema, job, {
    where: () => ['c.locked_by is not null and c.locked_until > now()'],
    order: 'c.locked_by, c.position, c.chunk_hash',
    limit: MOST_WORKING,
  })
}

async function failures(tx: Queryable, schema: string | undefined, job: JobSummary): Promise<ChunkSummary[]> {
  return findChunks(tx, schema, job, {
    where: () => ['c.failed_at is not null'],
    order: 'c.failed_at, c.position, c.chunk_hash',
    limit: MOST_FAILURES,
  })
}
