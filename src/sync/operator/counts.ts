/** How the chunks of a job stand. */
import { type Queryable } from '../../postgres/queryable.ts'
import { type JobSummary } from './job.ts'
import { type RecentSyncs, WINDOWS_MS } from './pace.ts'
import { tablesOf } from './tables.ts'

/** `total` is the sum of all the others but `retrying`. */
export interface ChunkCounts {
  /** As far as they are known: a plan in the making adds some. */
  readonly total: number
  /** Synced for this job. */
  readonly done: number
  /** Fresh enough when the job was planned. */
  readonly skipped: number
  /** In flight at this moment. */
  readonly running: number
  /** To be done. */
  readonly waiting: number
  /** Of those that wait, how many have failed before and are tried again. */
  readonly retrying: number
  /** Given up. */
  readonly failed: number
  /** Neither done nor wanted: their job was cancelled, or had to stop. */
  readonly dropped: number
}

export interface Counted extends RecentSyncs {
  readonly chunks: ChunkCounts
  /** How many rows its chunks have brought, without those that were skipped. */
  readonly rows: number
}

const DONE = 'c.completed_at is not null'
const FAILED = 'c.failed_at is not null'
const OPEN = 'c.completed_at is null and c.failed_at is null'
const RUNNING = `${OPEN} and coalesce(c.locked_until > now(), false)`
const IDLE = `${OPEN} and coalesce(c.locked_until <= now(), true)`

/** Of chunks c and their links l. */
export const COUNTS = `count(*)::int as total,
  count(*) filter (where ${DONE} and not l.skipped)::int as done,
  count(*) filter (where ${DONE} and l.skipped)::int as skipped,
  count(*) filter (where ${RUNNING})::int as running,
  count(*) filter (where ${IDLE} and c.wanted)::int as waiting,
  count(*) filter (where ${IDLE} and c.wanted and c.attempts > 0)::int as retrying,
  count(*) filter (where ${FAILED})::int as failed,
  count(*) filter (where ${IDLE} and not c.wanted)::int as dropped`

type CountRow = ChunkCounts & {
  readonly rows: number
  readonly ageMs: number
  readonly plannedAgoMs: number | null
  readonly recentChunks: readonly number[]
  readonly recentRows: readonly number[]
  readonly firstAgoMs: readonly (number | null)[]
}

/**
 * One pass over the chunks of the job, by the indexes of the two tables that begin with it and with its matrix: 100,000
 * of a million are counted in some 150 ms.
 */
export async function countChunks(
  tx: Queryable,
  schema: string | undefined,
  { id, matrixId, phase }: JobSummary,
): Promise<Counted> {
  const { jobs, checkpoints, links } = tablesOf(schema)
  const synced = 'not l.skipped and c.completed_at >= j.created_at'
  const within = WINDOWS_MS.map(
    (ms) => `${synced} and c.completed_at > now() - interval '${ms} milliseconds'`,
  )
  const ago = (moment: string): string => `(extract(epoch from now() - ${moment}) * 1000)::float8`
  const { rows } = await tx.query<CountRow>({
    text: `select ${COUNTS},
  coalesce(sum(c.row_count) filter (where not l.skipped and ${DONE}), 0)::float8 as rows,
  ${ago('min(j.created_at)')} as "ageMs", ${ago('min(j.planned_at)')} as "plannedAgoMs",
  array[${within.map((recent) => `count(*) filter (where ${recent})`).join(', ')}]::float8[] as "recentChunks",
  array[${within.map((recent) => `coalesce(sum(c.row_count) filter (where ${recent}), 0)`).join(', ')}]::float8[] as "recentRows",
  array[${within.map((recent) => ago(`min(c.completed_at) filter (where ${recent})`)).join(', ')}] as "firstAgoMs"
from ${links} as l
join ${checkpoints} as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
join ${jobs} as j on j.id = l.job_id
where l.job_id = $1::bigint and l.matrix_id = $2::text and c.matrix_id = $2::text`,
    values: [id, matrixId],
  })
  const {
    rows: synchronised,
    ageMs,
    plannedAgoMs,
    recentChunks,
    recentRows,
    firstAgoMs,
    ...chunks
  } = rows[0] ?? NONE
  return {
    // Later jobs may have taken up its chunks anew; that does not undo what it has completed.
    chunks: phase === 'completed' ? completed(chunks) : chunks,
    rows: synchronised,
    ageMs,
    plannedAgoMs,
    windows: WINDOWS_MS.map((ms, i) => ({
      ms,
      chunks: recentChunks[i] ?? 0,
      rows: recentRows[i] ?? 0,
      firstAgoMs: firstAgoMs[i] ?? null,
    })),
  }
}

/** All that there were are done. */
export function completed({ total, skipped }: Pick<ChunkCounts, 'total' | 'skipped'>): ChunkCounts {
  return { total, done: total - skipped, skipped, running: 0, waiting: 0, retrying: 0, failed: 0, dropped: 0 }
}

const NONE: CountRow = {
  ...completed({ total: 0, skipped: 0 }),
  rows: 0,
  ageMs: 0,
  plannedAgoMs: null,
  recentChunks: [],
  recentRows: [],
  firstAgoMs: [],
}
