/** How far a job is, how fast it proceeds, who works on what, and what has failed. */
import { type BrowseOptions, readOnly } from '../../operations/browse.ts'
import { checkDuration, checkPageSize } from '../../operations/request-checks.ts'
import { DAY_MS } from '../../operations/retention.ts'
import type { Database } from '../../postgres/database.ts'
import { stringifiable } from '../../stringifiable.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { type ChunkCounts, countChunks, type RecentSyncs } from './chunk-counts.ts'
import { type ChunkSummary, findChunks } from './chunks.ts'
import { findJob, jobColumns, type JobRow, jobSummary, type JobSummary } from './jobs.ts'
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

const MAX_WORKING_SHOWN = 20
const MAX_FAILURES_SHOWN = 10

/** How far a job is: its chunks by state, the pace, the time that is left, what is in flight and what has failed. */
export async function progress(
  db: Database,
  jobId: string,
  options: BrowseOptions = {},
): Promise<JobProgress> {
  const { schema } = options
  return readOnly(db, options, COUNTING, async (tx) =>
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

const MAX_FAILED_JOBS_SHOWN = 5

/** The same for all open jobs, and for those that have failed lately. */
export async function progressOfAll(
  db: Database,
  options: ProgressOfAllOptions = {},
): Promise<ProgressOfAll> {
  const { schema, limit = 20, failedWithinMs = DAY_MS } = options
  checkPageSize(limit)
  checkDuration('failedWithinMs', failedWithinMs)
  return readOnly(db, options, COUNTING, async (tx) => {
    const { jobs } = tablesOf(schema)
    const open = await tx.query<JobRow>({
      text: `select ${jobColumns(schema)} from ${jobs} as r where completed_at is null and failed_at is null
order by priority desc, created_at, r.id limit $1::int`,
      values: [limit + 1],
    })
    const failed = await tx.query<JobRow>({
      text: `select ${jobColumns(schema)} from ${jobs} as r where failed_at > now() - $1::float8 * interval '1 millisecond'
order by failed_at desc, r.id desc limit $2::int`,
      values: [failedWithinMs, MAX_FAILED_JOBS_SHOWN],
    })
    const found: JobProgress[] = []
    for (const row of [...open.rows.slice(0, limit), ...failed.rows]) {
      found.push(await progressOf(tx, schema, jobSummary(row)))
    }
    return { jobs: found, more: open.rows.length > limit }
  })
}

const COUNTING = { what: 'Counting the chunks', remedy: 'Allow more time.' }

async function progressOf(tx: Queryable, schema: string | undefined, job: JobSummary): Promise<JobProgress> {
  const { chunks, rows, ...recent } = await countChunks(tx, schema, job)
  const ended = job.phase === 'completed' || job.phase === 'failed'
  const pace = ended ? undefined : paceOf(recent)
  const known = job.phase === 'syncing'
  return stringifiable({
    ...job,
    chunks,
    rows,
    rowsPerSecond: pace?.rowsPerSecond,
    chunksPerMinute: pace?.chunksPerMinute,
    timeLeftMs: known ? timeLeft(pace, chunks.waiting + chunks.running) : undefined,
    working: chunks.running === 0 ? [] : await working(tx, schema, job),
    failures: chunks.failed === 0 ? [] : await failures(tx, schema, job),
  })
}

async function working(tx: Queryable, schema: string | undefined, job: JobSummary): Promise<ChunkSummary[]> {
  return findChunks(tx, schema, job, {
    where: () => ['c.locked_by is not null and c.locked_until > now()'],
    order: 'c.locked_by, c.position, c.chunk_hash',
    limit: MAX_WORKING_SHOWN,
  })
}

async function failures(tx: Queryable, schema: string | undefined, job: JobSummary): Promise<ChunkSummary[]> {
  return findChunks(tx, schema, job, {
    where: () => ['c.failed_at is not null'],
    order: 'c.failed_at, c.position, c.chunk_hash',
    limit: MAX_FAILURES_SHOWN,
  })
}

export interface Pace {
  readonly rowsPerSecond: number
  readonly chunksPerMinute: number
}

/** With fewer chunks than this, the next longer window is used. */
const MIN_CHUNKS_FOR_PACE = 10
/** A pace over a shorter time than this would mean nothing. */
const MIN_ELAPSED_MS = 1_000

/** Undefined when nothing was synced yet, or only just now. */
export function paceOf({ windows, ageMs, plannedAgoMs }: RecentSyncs): Pace | undefined {
  const window = windows.find(({ chunks }) => chunks >= MIN_CHUNKS_FOR_PACE) ?? windows.at(-1)
  if (window === undefined || window.chunks === 0) return undefined
  const { ms, chunks, rows, firstAgoMs } = window
  // A job may wait long before it is planned, so the time counts from the plan, unless chunks were synced before it was complete.
  const workedMs = plannedAgoMs !== null && plannedAgoMs >= (firstAgoMs ?? 0) ? plannedAgoMs : ageMs
  const elapsedMs = Math.min(ms, workedMs)
  if (elapsedMs < MIN_ELAPSED_MS) return undefined
  return { rowsPerSecond: (rows / elapsedMs) * 1_000, chunksPerMinute: (chunks / elapsedMs) * 60_000 }
}

/** How long so many chunks take at this pace. */
export function timeLeft(pace: Pace | undefined, open: number): number | undefined {
  return pace === undefined ? undefined : (open / pace.chunksPerMinute) * 60_000
}
