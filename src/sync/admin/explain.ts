/** Why a job, or a chunk of it, is not running: besides what every lease table has, a job waits for its chunks. */
import { explainOne, type ExplainOptions, type FoundRow } from '../../operations/explain/explain.ts'
import {
  at,
  type Explanation,
  reason,
  type Reason,
  type ReasonCode,
} from '../../operations/explain/reasons.ts'
import {
  commandLine,
  type RowAddress,
  rowCommands,
  schemaFlag,
  updateSql,
} from '../../operations/shown-commands.ts'
import { checkTexts } from '../../operations/request-checks.ts'
import { LeaseholdError } from '../../errors.ts'
import { counted } from '../../figures.ts'
import { rowId } from '../../lease/lease.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { SYNC, SYNC_JOBS } from '../runner.ts'
import { chunkTable, jobTable } from '../table.ts'
import { checkJobId, findJob, type JobSummary } from './jobs.ts'
import { tablesOf } from './tables.ts'

const ENDED = {
  ended: "case when completed_at is not null then 'completed' when failed_at is not null then 'failed' end",
  endedAt: 'coalesce(completed_at, failed_at)',
  isDead: 'failed_at is not null',
  group: 'definition',
} as const

/** A failed attempt (`retryWait`) stays a reason of its own. */
const REPLACES: readonly ReasonCode[] = ['scheduled', 'notClaimable']

/** Explains a job. */
export async function explainJob(
  db: Database,
  jobId: string,
  options: ExplainOptions = {},
): Promise<Explanation> {
  checkJobId(jobId)
  const { schema } = options
  const table = jobTable({ schema })
  const retry = (row: RowAddress): string => updateSql(table, row, 'next_check_at = now()')
  return explainOne(
    db,
    jobId,
    {
      table,
      workers: [SYNC_JOBS],
      description: { ...ENDED, row: 'job', ...rowCommands('sync', schema), retry },
      find: async (tx) => findJob(tx, schema, jobId),
      async reasons(tx, found, job) {
        if (found.state !== 'waiting') return []
        return job.plannedAt === null
          ? busySource(tx, found, schema, retry)
          : waitsForChunks(tx, job, job.plannedAt, found.row.now, schema)
      },
      replaces: REPLACES,
    },
    options,
  )
}

/** How many unfinished chunks are counted at most. */
const MAX_CHUNKS_COUNTED = 100_000

/** A job that is planned is not claimed before its chunks are finished. */
async function waitsForChunks(
  tx: Queryable,
  { id, matrixId }: JobSummary,
  plannedAt: Date,
  now: Date,
  schema: string | undefined,
): Promise<readonly Reason[]> {
  const { checkpoints, links } = tablesOf(schema)
  const { rows } = await tx.query<{ open: number; leased: number; failed: number; first: string | null }>({
    text: `/* leasehold:explain chunks sync_checkpoints */
select count(*) filter (where failed_at is null)::int as open,
  count(*) filter (where failed_at is null and locked_until > now())::int as leased,
  count(*) filter (where failed_at is not null)::int as failed,
  (array_agg(chunk_hash order by locked_until > now() nulls first, position) filter (where failed_at is null))[1] as first
from (
  select c.failed_at, c.locked_until, c.chunk_hash, c.position
  from ${checkpoints} as c
  join ${links} as l on l.job_id = $1 and l.matrix_id = c.matrix_id and l.chunk_hash = c.chunk_hash
  where c.matrix_id = $2::text and c.completed_at is null
  limit ${MAX_CHUNKS_COUNTED}
) as unfinished`,
    values: [id, matrixId],
  })
  const { open, leased, failed, first } = rows[0] ?? { open: 0, leased: 0, failed: 0, first: null }
  const planned = `It was planned at ${at(plannedAt, now)}`
  const text =
    open === 0
      ? `${planned}, none of its chunks is open any more, and a runner finds that within seconds.`
      : `${planned}, and waits for ${counted(open, 'chunk')}: ${leased} in flight, ${open - leased} waiting; ${failed} ${failed === 1 ? 'has' : 'have'} failed.`
  const command = first === null ? undefined : explainChunkCommand(id, first, schema)
  return [reason('waitsForChunks', text, { since: plannedAt, by: first, command })]
}

function explainChunkCommand(jobId: string, hash: string, schema: string | undefined, flags = ''): string {
  return commandLine('leasehold sync explain', [jobId, hash], `${schemaFlag(schema)}${flags}`)
}

/** Explains a chunk of a job, by its hash. */
export async function explainChunk(
  db: Database,
  jobId: string,
  hash: string,
  options: ExplainOptions = {},
): Promise<Explanation> {
  checkJobId(jobId)
  checkTexts({ hash })
  const { schema } = options
  const table = chunkTable({ schema })
  const retry = (row: RowAddress): string => updateSql(table, row, 'next_attempt_at = now()')
  const replay = (): string => rowCommands('sync', schema).replay({ id: jobId })
  return explainOne(
    db,
    hash,
    {
      table,
      workers: [SYNC],
      description: {
        ...ENDED,
        row: 'chunk',
        retry,
        replay,
        explain: (_, flags) => explainChunkCommand(jobId, hash, schema, flags),
      },
      find: async (tx) => ({ id: await findChunk(tx, schema, jobId, hash) }),
      async reasons(tx, found) {
        if (found.state !== 'finished') return busySource(tx, found, schema, retry)
        return found.row.ended === null ? [reason('notNeeded', NOT_NEEDED, { command: replay() })] : []
      },
      replaces: REPLACES,
    },
    options,
  )
}

const NOT_NEEDED =
  'No open job needs it any more: its job was cancelled, or stopped at another chunk that failed.'

async function findChunk(
  tx: Queryable,
  schema: string | undefined,
  jobId: string,
  hash: string,
): Promise<string> {
  const { matrixId } = await findJob(tx, schema, jobId)
  const { rows } = await tx.query({
    text: `select from ${tablesOf(schema).links}
where job_id = $1 and matrix_id = $2::text and chunk_hash = $3::text`,
    values: [jobId, matrixId, hash],
  })
  if (rows.length > 0) return rowId(matrixId, hash)
  throw new LeaseholdError('ROW_NOT_FOUND', `The job ${jobId} has no chunk with the hash ${hash}.`, {
    remedy: `\`leasehold sync show ${jobId}\` shows its chunks.`,
  })
}

const MAX_SOURCES_NAMED = 5

/**
 * A row at which no attempt has failed waits because its source had no room, or because somebody scheduled it. Which source
 * a definition has is known only to its runner, so that all sources without room are named.
 */
async function busySource(
  tx: Queryable,
  { row, state }: FoundRow,
  schema: string | undefined,
  retry: (row: RowAddress) => string,
): Promise<readonly Reason[]> {
  const { dueAt, now } = row
  if (state !== 'waiting' || row.isDue || dueAt === null || row.attempts > 0) return []
  const { rows } = await tx.query<{ source: string; nextAt: Date }>({
    text: `select source, next_at as "nextAt" from ${quoteQualified(schema ?? 'leasehold', 'sync_sources')}
where next_at > now() and isfinite(next_at) order by next_at desc limit ${MAX_SOURCES_NAMED}`,
  })
  const [first] = rows
  if (first === undefined) return []
  const reserved = rows.map(({ source, nextAt }) => `those to ${source} until ${at(nextAt, now)}`).join(', ')
  const text = `It is not due until ${at(dueAt, now)}, and it may be that its source had no room: calls are reserved ahead, ${reserved}.`
  return [reason('sourceRateLimit', text, { until: dueAt, by: first.source, command: retry(row) })]
}
