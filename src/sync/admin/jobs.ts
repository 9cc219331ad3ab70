/** What operators read of jobs: pages of them, and one job. */
import { listNewestFirst, type PageOptions } from '../../operations/browse.ts'
import { isEmptyFilter } from '../../operations/bulk-change.ts'
import type { NamedRow } from '../../operations/named-rows.ts'
import { checkCommonFilter, type CommonFilter, commonSql } from '../../operations/filter-sql.ts'
import { checkMoments, checkTexts, invalid, isRowId, isUuid } from '../../operations/request-checks.ts'
import { hasCode, LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { PositionalParameters } from '../../postgres/parameters.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { SyncState } from '../transitions.ts'
import { stringifiable } from '../../stringifiable.ts'
import { type ChunkCounts, completedCounts, COUNTS } from './chunk-counts.ts'
import { checkStates, stateSql, tablesOf } from './tables.ts'

export interface JobSummary {
  readonly id: string
  readonly definition: string
  readonly matrixId: string
  readonly params: unknown
  readonly priority: number
  readonly force: boolean
  readonly freshForMs: number | null
  readonly parallel: boolean
  /** Derived from its own lease and its end: while its chunks are synced, it is `AVAILABLE` between two checks of them. */
  readonly state: SyncState
  /** How far it is, for a person. */
  readonly phase: JobPhase
  readonly createdAt: Date
  /** When all of its chunks were known. */
  readonly plannedAt: Date | null
  readonly nextCheckAt: Date
  /** How often planning it has failed in a row. */
  readonly attempts: number
  readonly completedAt: Date | null
  readonly failedAt: Date | null
  readonly errorMessage: string | null
  /** The worker that plans it, or checks its chunks, now. */
  readonly lockedBy: string | null
  readonly lockedUntil: Date | null
  readonly token: bigint
}

/**
 * - `waiting`: not all of its chunks are known, and no worker plans it now.
 * - `planning`: a worker plans it; chunks that are known are synced at the same time.
 * - `syncing`: all of its chunks are known, and some are not finished.
 */
export type JobPhase = 'waiting' | 'planning' | 'syncing' | 'completed' | 'failed'

export type JobRow = Omit<JobSummary, 'token' | 'phase'> & { readonly token: string }

/** The columns of a job r. */
export function jobColumns(schema: string | undefined): string {
  return `r.id::text as id, r.definition, r.matrix_id as "matrixId", r.params, r.priority, r.force,
  (extract(epoch from r.fresh_for) * 1000)::float8 as "freshForMs", r.parallel, ${stateSql(schema, 'r')} as state,
  r.created_at as "createdAt", r.planned_at as "plannedAt", r.next_check_at as "nextCheckAt", r.attempts,
  r.completed_at as "completedAt", r.failed_at as "failedAt", r.error_message as "errorMessage",
  r.locked_by as "lockedBy", r.locked_until as "lockedUntil", r.lock_token::text as token`
}

export function jobSummary(row: JobRow): JobSummary {
  return stringifiable({ ...row, token: BigInt(row.token), phase: phaseOf(row) })
}

function phaseOf({ state, plannedAt }: JobRow): JobPhase {
  if (state === 'COMPLETED') return 'completed'
  if (state === 'FAILED') return 'failed'
  if (plannedAt !== null) return 'syncing'
  return state === 'RUNNING' ? 'planning' : 'waiting'
}

/** Finds a job, or fails with JOB_NOT_FOUND. */
export async function findJob(tx: Queryable, schema: string | undefined, jobId: string): Promise<JobSummary> {
  checkJobId(jobId)
  const statement = {
    text: `select ${jobColumns(schema)} from ${tablesOf(schema).jobs} as r where r.id = $1`,
    values: [jobId],
  }
  const rows = await tx.query<JobRow>(statement).then(
    (found) => found.rows,
    (error: unknown) => {
      // A number where the ids are uuids, or the other way round.
      if (hasCode(error, '22P02')) return []
      throw error
    },
  )
  const [row] = rows
  if (row !== undefined) return jobSummary(row)
  throw new LeaseholdError('JOB_NOT_FOUND', `No sync job has the id ${jobId}.`, {
    remedy: '`leasehold sync list` shows what is there; retention may have deleted it.',
  })
}

export function checkJobId(jobId: string, field = 'jobId'): void {
  if (!isRowId(jobId) && !isUuid(jobId)) throw invalid(field, jobId, 'Give the number of a sync job.')
}

/**
 * Jobs are listed, and changed in bulk, in the order of their numbers, which uuids of a table that existed before (SYNC-14)
 * do not have.
 */
export async function requireNumberedJobs(db: Queryable, schema: string | undefined): Promise<void> {
  const { jobs } = tablesOf(schema)
  const { rows } = await db.query<{ uuid: boolean }>({
    text: `select atttypid = 'uuid'::regtype as uuid from pg_attribute where attrelid = to_regclass($1) and attname = 'id'`,
    values: [jobs],
  })
  if (rows[0]?.uuid !== true) return
  throw new LeaseholdError(
    'SETTING_INVALID',
    `${jobs}.id is uuid, and jobs can be listed, cancelled and replayed only by numbers.`,
    {
      remedy: `Read ${quoteQualified(schema ?? 'leasehold', 'sync_job_states')} in SQL; \`leasehold sync status\` shows one job by its id.`,
    },
  )
}

/** The jobs that an operator names, and why each is not changed. Their chunks, which `listJobs` counts, are not read. */
export async function findNamed(
  db: Queryable,
  schema: string,
  ids: readonly string[],
  whyNot: (job: JobSummary) => string | undefined,
): Promise<NamedRow[]> {
  const { rows } = await db.query<JobRow>({
    text: `select ${jobColumns(schema)} from ${tablesOf(schema).jobs} as r where r.id = any ($1::bigint[])`,
    values: [ids],
  })
  return rows.map((row) => ({ id: row.id, whyNot: whyNot(jobSummary(row)) }))
}

/** What an operator chooses jobs by, for listing, replaying and cancelling alike. */
export interface JobFilter extends CommonFilter {
  readonly definition?: string | undefined
  readonly matrixId?: string | undefined
  readonly states?: readonly SyncState[] | undefined
  /** Failed at this time or later: means failed jobs only. */
  readonly failedSince?: Date | undefined
}

/** The fields that are dates. */
export const FILTER_DATES = ['from', 'to', 'failedSince'] as const

/** Refuses what can only be a mistake, before the database is asked. */
export function checkFilter(filter: JobFilter): void {
  checkCommonFilter(filter, FIELDS, (id) => {
    if (!isRowId(id)) throw invalid('id', id, 'Give the number of a sync job.')
  })
  const { definition, matrixId, states, failedSince } = filter
  checkTexts({ definition, matrixId })
  checkStates(states)
  checkMoments({ failedSince })
}

const FIELDS = [
  'definition',
  'matrixId',
  'states',
  'from',
  'to',
  'failedSince',
  'error',
  'ids',
] as const satisfies readonly (keyof JobFilter)[]

/** The conditions that an index answers. */
export function narrowSql({ ids, failedSince }: JobFilter, parameter: PositionalParameters): string {
  return [
    'true',
    ...(ids === undefined ? [] : [`id = any (${parameter(ids, 'bigint[]')})`]),
    ...(failedSince === undefined ? [] : [`failed_at >= ${parameter(failedSince, 'timestamptz')}`]),
  ].join(' and ')
}

/** All conditions; every value of the filter is a parameter. */
export function filterSql(
  filter: JobFilter,
  parameter: PositionalParameters,
  schema: string | undefined,
): string {
  const { definition, matrixId, states } = filter
  return [
    narrowSql(filter, parameter),
    ...(definition === undefined ? [] : [`definition = ${parameter(definition, 'text')}`]),
    ...(matrixId === undefined ? [] : [`matrix_id = ${parameter(matrixId, 'text')}`]),
    ...(states === undefined ? [] : [`${stateSql(schema)} = any (${parameter(states, 'text[]')})`]),
    ...commonSql(filter, 'error_message', parameter),
  ].join(' and ')
}

export interface ListedJob extends JobSummary {
  readonly chunks: ChunkCounts
}

export interface JobPage {
  /** Newest first. */
  readonly jobs: readonly ListedJob[]
  /** What `before` is for the next page; null when this was the last. */
  readonly next: string | null
}

/** One page of jobs, newest first. */
export async function listJobs(
  db: Database,
  filter: JobFilter = {},
  options: PageOptions = {},
): Promise<JobPage> {
  checkFilter(filter)
  const { schema } = options
  await requireNumberedJobs(db, schema)
  const { jobs, checkpoints, links } = tablesOf(schema)
  const { rows, next } = await listNewestFirst<JobRow & { readonly chunks: ChunkCounts }>(db, options, {
    table: jobs,
    bucketed: false,
    row: 'a job',
    isIndexed: filter.ids !== undefined || isEmptyFilter(filter),
    where: (parameter) => [filterSql(filter, parameter, schema)],
    columns: `${jobColumns(schema)}, coalesce(to_jsonb(counted), to_jsonb(ended)) as chunks`,
    // Of a completed job all chunks are done, so that its links are enough.
    joins: `left join lateral (
  select count(*) as total, count(*) filter (where l.skipped) as skipped
  from ${links} as l where l.job_id = r.id and l.matrix_id = r.matrix_id and r.completed_at is not null
) as ended on r.completed_at is not null
left join lateral (
  select ${COUNTS} from ${links} as l
  join ${checkpoints} as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
  where l.job_id = r.id and l.matrix_id = r.matrix_id and c.matrix_id = r.matrix_id and r.completed_at is null
) as counted on r.completed_at is null`,
    what: 'Listing the jobs',
    remedy: 'Choose fewer jobs, by definition, matrix or state; or allow more time.',
  })
  const found = rows.map(({ chunks, ...row }): ListedJob => {
    const job = jobSummary(row)
    return stringifiable({ ...job, chunks: job.phase === 'completed' ? completedCounts(chunks) : chunks })
  })
  return { jobs: found, next }
}
