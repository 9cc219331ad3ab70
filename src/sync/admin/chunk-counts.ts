/** How many chunks of a job are in which state, and how many were synced lately. */
import type { Queryable } from '../../postgres/queryable.ts'
import type { JobSummary } from './jobs.ts'
import { tablesOf } from './tables.ts'

/** What was synced for a job within so many milliseconds. */
export interface RecentWindow {
  readonly ms: number
  readonly chunks: number
  readonly rows: number
  /** How long ago the first of them was done. */
  readonly firstAgoMs: number | null
}

export interface RecentSyncs {
  readonly ageMs: number
  /** Null: not all of its chunks are known. */
  readonly plannedAgoMs: number | null
  /** From the shortest to the longest. */
  readonly windows: readonly RecentWindow[]
}

/** A minute, a quarter of an hour, a day: a chunk takes from milliseconds to hours. */
export const WINDOWS_MS = [60_000, 900_000, 86_400_000] as const

/** `total` is the sum of all the others but `retrying`. */
export interface ChunkCounts {
  /** How many are known: while the job is planned, more are added. */
  readonly total: number
  /** Synced for this job. */
  readonly done: number
  /** Fresh enough when the job was planned. */
  readonly skipped: number
  /** In flight. */
  readonly running: number
  /** Not started, or waiting for a retry. */
  readonly waiting: number
  /** How many of the waiting ones have failed before. */
  readonly retrying: number
  /** Given up. */
  readonly failed: number
  /** Neither done nor needed: their job was cancelled, or stopped at a failure. */
  readonly dropped: number
}

export interface CountedChunks extends RecentSyncs {
  readonly chunks: ChunkCounts
  /** How many rows its chunks have brought, without those that were skipped. */
  readonly rows: number
}

/** What a chunk c with its link l is counted as: the first that fits. */
const KIND = `case
    when c.completed_at is not null then case when l.skipped then 'skipped' else 'done' end
    when c.failed_at is not null then 'failed'
    when c.locked_until > now() then 'running'
    when not c.needed then 'dropped'
    when c.attempts > 0 then 'retrying'
    else 'waiting'
  end`

type Kind = Exclude<keyof ChunkCounts, 'total'>

/** One kind of chunks; those that were synced for the job lately, apart. */
interface CountRow {
  readonly kind: Kind
  /** Which of the windows is the shortest that they were synced in; null: before all of them, or not at all. */
  readonly window: number | null
  readonly count: number
  readonly rows: number
  readonly first: Date | null
  readonly now: Date
}

/**
 * One pass over the chunks of the job, along the indexes of the two tables that begin with it and with its matrix: of
 * 100,000 among 600,000 in a few hundred ms. Each is put into one group; a dozen filtered aggregates took twice as long.
 */
export async function countChunks(
  tx: Queryable,
  schema: string | undefined,
  job: JobSummary,
): Promise<CountedChunks> {
  const { jobs, checkpoints, links } = tablesOf(schema)
  const windows = WINDOWS_MS.map(
    (ms, i) => `when c.completed_at > now() - interval '${ms} milliseconds' then ${i}`,
  )
  const { rows } = await tx.query<CountRow>({
    text: `select ${KIND} as kind,
  case
    when l.skipped or c.completed_at is null or c.completed_at < (select created_at from ${jobs} where id = $1) then null
    ${windows.join('\n    ')}
  end as window,
  count(*)::int as count, coalesce(sum(c.row_count::float8), 0) as rows, min(c.completed_at) as first, now() as now
from ${links} as l
join ${checkpoints} as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
where l.job_id = $1 and l.matrix_id = $2::text and c.matrix_id = $2::text
group by 1, 2`,
    values: [job.id, job.matrixId],
  })
  const chunks = countsOf(rows)
  const done = rows.filter(({ kind }) => kind === 'done')
  return {
    // Later jobs may have taken up its chunks anew; that does not undo what it has completed.
    chunks: job.phase === 'completed' ? completedCounts(chunks) : chunks,
    rows: sum(done.map((group) => group.rows)),
    ...recentOf(job, done),
  }
}

function countsOf(rows: readonly CountRow[]): ChunkCounts {
  const count = (kind: Kind): number => sum(rows.map((row) => (row.kind === kind ? row.count : 0)))
  const retrying = count('retrying')
  return {
    total: sum(rows.map((row) => row.count)),
    done: count('done'),
    skipped: count('skipped'),
    running: count('running'),
    waiting: count('waiting') + retrying,
    retrying,
    failed: count('failed'),
    dropped: count('dropped'),
  }
}

function recentOf({ createdAt, plannedAt }: JobSummary, done: readonly CountRow[]): RecentSyncs {
  const now = done[0]?.now ?? createdAt
  const ago = (moment: Date): number => now.getTime() - moment.getTime()
  return {
    ageMs: ago(createdAt),
    plannedAgoMs: plannedAt === null ? null : ago(plannedAt),
    windows: WINDOWS_MS.map((ms, i) => {
      const within = done.filter(({ window }) => window !== null && window <= i)
      const first = within.flatMap((group) => (group.first === null ? [] : [ago(group.first)]))
      return {
        ms,
        chunks: sum(within.map(({ count }) => count)),
        rows: sum(within.map((group) => group.rows)),
        firstAgoMs: first.length === 0 ? null : Math.max(...first),
      }
    }),
  }
}

/** The counts of a statement that has many jobs: of chunks c and their links l. */
export const COUNTS = `count(*) as total, ${(
  ['done', 'skipped', 'running', 'retrying', 'failed', 'dropped'] as const
)
  .map((kind) => `count(*) filter (where ${KIND} = '${kind}') as ${kind}`)
  .join(',\n  ')},
  count(*) filter (where ${KIND} in ('waiting', 'retrying')) as waiting`

/** The counts of a completed job: all of its chunks are done. */
export function completedCounts({ total, skipped }: Pick<ChunkCounts, 'total' | 'skipped'>): ChunkCounts {
  return { total, done: total - skipped, skipped, running: 0, waiting: 0, retrying: 0, failed: 0, dropped: 0 }
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0)
}
