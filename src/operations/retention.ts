/**
 * Deletes finished rows that are old enough, in small batches with a pause after each, until there are none or the
 * signal aborts. Ages are measured by the clock of the database (D11). Rows that somebody has locked are skipped and found
 * by the next run, so that any number of processes may do this at once.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { systemClock } from '../clock.ts'
import { ownBuckets } from '../lease/backlog.ts'
import { isDistributed } from '../postgres/citus.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable, Statement } from '../postgres/queryable.ts'
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
 * Where the next run along the ids of a table starts. Rows that stay for long, such as dead ones, would otherwise be read
 * by every run of every process: a million of them takes 1.5 s of the server's CPU each time.
 */
export interface RetentionCursor {
  /** When a run last started at the first row of every bucket, and ended, by the monotonic clock. */
  startedOverAt: number
  /** For each bucket, up to which id all rows were old enough, so that what is left of them stays for a while. */
  readonly passed: Map<number, string>
}

export function retentionCursor(): RetentionCursor {
  return { startedOverAt: Number.NEGATIVE_INFINITY, passed: new Map() }
}

/**
 * How often a run starts at the first row all the same, or the time for which rows are retained if that is shorter: to
 * find rows that were finished long after they were created, or were locked.
 */
const START_OVER_EVERY_MS = 3_600_000

const cutoff = (parameter: string): string => `now() - ${parameter}::float8 * interval '1 millisecond'`

/**
 * Deletes along the ids of each bucket, from the oldest row on, or from the cursor. Whether a row is deleted depends on
 * when it was finished alone. `created_at` only decides where the run ends: no row is finished before it is created, so
 * that where all rows of a batch were created too recently, later ids have nothing to delete either. A `created_at` in the
 * future is a producer's mistake and ends nothing.
 */
export async function deleteAlongIds(
  db: Queryable,
  run: RetentionRun,
  rows: FinishedRows,
  keepMs: number,
  cursor: RetentionCursor,
): Promise<number> {
  const startsOver =
    systemClock.monotonicNow() - cursor.startedOverAt >= Math.min(START_OVER_EVERY_MS, keepMs)
  if (startsOver) cursor.passed.clear()
  let deleted = 0
  for (const bucket of await bucketsWithOldRows(db, run, rows, keepMs, cursor)) {
    deleted += await deleteOfBucket(db, run, rows, bucket, keepMs, cursor)
  }
  if (startsOver && run.signal?.aborted !== true) cursor.startedOverAt = systemClock.monotonicNow()
  return deleted
}

/** The buckets whose first row after the cursor is old: one statement, however many buckets there are. */
async function bucketsWithOldRows(
  db: Queryable,
  run: RetentionRun,
  { table, among }: FinishedRows,
  keepMs: number,
  { passed }: RetentionCursor,
): Promise<readonly number[]> {
  return bucketsOf(db, run, {
    text: `left join unnest($2::int[], $3::bigint[]) as cursor (bucket, passed) on cursor.bucket = b.bucket
cross join lateral (
  select created_at from ${table}
  where bucket = b.bucket::smallint and id > coalesce(cursor.passed, '${BEFORE_FIRST_ID}'::bigint)${and(among)}
  order by id limit 1
) as first
where first.created_at < ${cutoff('$1')} or first.created_at > now()`,
    values: [keepMs, [...passed.keys()], [...passed.values()]],
  })
}

/** The buckets `b` that satisfy the rest of a query; all of them on Citus, which joins no distributed table like this. */
export async function bucketsOf(
  db: Queryable,
  { schema }: Pick<RetentionRun, 'schema'>,
  rest: Required<Pick<Statement, 'text' | 'values'>>,
): Promise<readonly number[]> {
  if (await isDistributed(db, schema)) return ownBuckets(db, schema)
  const { rows } = await db.query<{ bucket: number }>({
    text: `/* leasehold:find buckets */
select b.bucket
from generate_series(0, ${quoteQualified(schema, 'bucket_count')}() - 1) as b (bucket)
${rest.text}`,
    values: rest.values,
  })
  return rows.map(({ bucket }) => bucket)
}

const and = (condition: string | undefined): string => (condition === undefined ? '' : ` and ${condition}`)

interface Batch {
  readonly changed: number
  /** The last id that was read; null: there was no row. */
  readonly readTo: string | null
  readonly anyOld: boolean
  /** The last id before the first young row; null: the first row was young. */
  readonly oldTo: string | null
}

async function deleteOfBucket(
  db: Queryable,
  run: RetentionRun,
  { table, finished, finishedAt, among }: FinishedRows,
  bucket: number,
  keepMs: number,
  { passed }: RetentionCursor,
): Promise<number> {
  const expired = `${finished} and ${finishedAt} < ${cutoff('$3')}`
  const text = `/* leasehold:delete finished */
with scanned as materialized (
  select id, (${expired}) as expired, created_at < ${cutoff('$3')} or created_at > now() as old
  from ${table}
  where bucket = $1::smallint and id > $2::bigint${and(among)}
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
select (select count(*) from deleted)::int as changed, max(id)::text as "readTo", coalesce(bool_or(old), false) as "anyOld",
  max(id) filter (where coalesce(id < (select min(id) from scanned where not old), true))::text as "oldTo"
from scanned`
  let after = passed.get(bucket) ?? BEFORE_FIRST_ID
  let anyYoung = false
  return inBatches(run, async () => {
    const { rows } = await db.query<Batch>({ text, values: [bucket, after, keepMs, run.batch] })
    const { changed = 0, readTo = null, anyOld = false, oldTo = null } = rows[0] ?? {}
    if (!anyYoung && oldTo !== null) passed.set(bucket, oldTo)
    anyYoung ||= readTo !== oldTo
    after = readTo ?? after
    return { changed, more: readTo !== null && anyOld }
  })
}

/** Deletes along an index on (bucket, finishedAt, id) of the finished rows, from the one that was finished first. */
export async function deleteAlongFinishTime(
  db: Queryable,
  run: RetentionRun,
  { table, finished, finishedAt }: Omit<FinishedRows, 'among'>,
  keepMs: number,
): Promise<number> {
  const text = `/* leasehold:delete finished */
with locked as materialized (
  select id from ${table}
  where bucket = $1::smallint and ${finished} and ${finishedAt} < ${cutoff('$2')}
  order by ${finishedAt}, id limit $3::int
  for update skip locked
)
delete from ${table} where bucket = $1::smallint and id = any (array(select id from locked))`
  const buckets = await bucketsOf(db, run, {
    text: `where (
  select ${finishedAt} from ${table} where bucket = b.bucket::smallint and ${finished} order by ${finishedAt}, id limit 1
) < ${cutoff('$1')}`,
    values: [keepMs],
  })
  let deleted = 0
  for (const bucket of buckets) {
    deleted += await inBatches(run, async () => {
      const { rowCount } = await db.query({ text, values: [bucket, keepMs, run.batch] })
      return { changed: rowCount ?? 0, more: rowCount === run.batch }
    })
  }
  return deleted
}
