/**
 * Deletes finished rows that are old enough, in small batches with a pause after each, until there are none or the
 * signal aborts. Ages are measured by the clock of the database (D11). Rows that somebody has locked are skipped and found
 * by the next run, so that any number of processes may do this at once.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Queryable } from '../postgres/queryable.ts'
import { checkDuration, invalid } from './request-checks.ts'

export interface BatchPacing {
  /** How many rows one statement reads and deletes at most. Default 1,000. */
  readonly batch?: number | undefined
  /** How long to pause after each batch, in milliseconds. Default 20. */
  readonly pauseMs?: number | undefined
}

/** What every call of a retention may say besides how long rows are retained. */
export interface RetentionCall {
  readonly schema?: string | undefined
  /** Ends the run after the batch that is being written. */
  readonly signal?: AbortSignal | undefined
}

export const DAY_MS = 86_400_000

/** One run over the tables of an application. */
export interface RetentionRun {
  readonly schema: string
  readonly batch: number
  readonly pauseMs: number
  readonly signal: AbortSignal | undefined
}

const MAX_BATCH = 10_000

/** Smaller than every id. */
export const BEFORE_FIRST_ID = '-9223372036854775808'

/** Checks the settings of a run. `keepMs` has how long each kind of row is retained; null means for ever, undefined the default. */
export function startRetention(
  options: BatchPacing & RetentionCall,
  keepMs: Readonly<Record<string, number | null | undefined>>,
): RetentionRun {
  const { schema = 'leasehold', batch = 1_000, pauseMs = 20, signal } = options
  for (const [name, value] of Object.entries(keepMs)) {
    if (value !== undefined && value !== null) checkDuration(name, value, ', or null to retain them for ever')
  }
  checkDuration('pauseMs', pauseMs)
  if (!Number.isInteger(batch) || batch < 1 || batch > MAX_BATCH) {
    throw invalid('batch', batch, `Give a whole number from 1 to ${MAX_BATCH}.`)
  }
  return { schema, batch, pauseMs, signal }
}

/** Repeats a batch until it reports that there is no more, and returns how many rows were changed in all. */
export async function inBatches(
  run: RetentionRun,
  runBatch: () => Promise<{ readonly changed: number; readonly more: boolean }>,
): Promise<number> {
  const { signal, pauseMs } = run
  let sum = 0
  while (run.signal?.aborted !== true) {
    const { changed, more } = await runBatch()
    sum += changed
    if (!more) break
    // The signal ends the pause; the loop sees it.
    if (pauseMs > 0) {
      await delay(pauseMs, undefined, signal === undefined ? {} : { signal }).catch(() => undefined)
    }
  }
  return sum
}

/** Finished rows of one kind. */
export interface FinishedRows {
  /** The table as SQL names it; it has the columns bucket, id and created_at. */
  readonly table: string
  /** What a finished row satisfies: `status = 'PUBLISHED'`. */
  readonly finished: string
  /** When it was finished. */
  readonly finishedAt: string
  /** A condition that a partial index on (bucket, id) answers. Without it every row is read, along the primary key. */
  readonly among?: string
}

/**
 * Deletes along the ids of a bucket, from the oldest row on. Whether a row is deleted depends on when it was finished
 * alone. `created_at` only decides where the run ends: no row is finished before it is created, so that where all rows of
 * a batch were created too recently, later ids have nothing to delete either. A `created_at` in the future is a producer's
 * mistake and ends nothing.
 */
export async function deleteAlongIds(
  db: Queryable,
  run: RetentionRun,
  { table, finished, finishedAt, among }: FinishedRows,
  bucket: number,
  keepMs: number,
): Promise<number> {
  const cutoff = "now() - $3::float8 * interval '1 millisecond'"
  const expired = `${finished} and ${finishedAt} < ${cutoff}`
  const text = `/* leasehold:delete finished */
with scanned as materialized (
  select id, created_at, (${expired}) as expired
  from ${table}
  where bucket = $1::smallint and id > $2::bigint${among === undefined ? '' : ` and ${among}`}
  order by id limit $4::int
),
locked as materialized (
  select id from ${table}
  where bucket = $1::smallint and id = any (array(select id from scanned where expired)) and ${expired}
  for update skip locked
),
-- By the primary key, from an array: no estimate can turn that into a scan of the table.
deleted as (
  delete from ${table} where bucket = $1::smallint and id = any (array(select id from locked)) returning 1
)
select (select count(*) from deleted)::int as changed, max(id)::text as "scannedTo",
  coalesce(bool_or(created_at < ${cutoff} or created_at > now()), false) as "anyOld"
from scanned`
  let after = BEFORE_FIRST_ID
  return inBatches(run, async () => {
    const { rows } = await db.query<{ changed: number; scannedTo: string | null; anyOld: boolean }>({
      text,
      values: [bucket, after, keepMs, run.batch],
    })
    const { changed = 0, scannedTo = null, anyOld = false } = rows[0] ?? {}
    after = scannedTo ?? after
    return { changed, more: scannedTo !== null && anyOld }
  })
}

/** Deletes along an index on (bucket, finishedAt, id) of the finished rows, from the one that was finished first. */
export async function deleteAlongFinishTime(
  db: Queryable,
  run: RetentionRun,
  { table, finished, finishedAt }: Omit<FinishedRows, 'among'>,
  bucket: number,
  keepMs: number,
): Promise<number> {
  const text = `/* leasehold:delete finished */
with locked as materialized (
  select id from ${table}
  where bucket = $1::smallint and ${finished} and ${finishedAt} < now() - $2::float8 * interval '1 millisecond'
  order by ${finishedAt}, id limit $3::int
  for update skip locked
)
delete from ${table} where bucket = $1::smallint and id = any (array(select id from locked))`
  return inBatches(run, async () => {
    const { rowCount } = await db.query({ text, values: [bucket, keepMs, run.batch] })
    return { changed: rowCount ?? 0, more: rowCount === run.batch }
  })
}
