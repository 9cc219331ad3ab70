/** The chunks of a job: pages of them in the order of the plan, and their locks while an operator changes the job. */
import { type BrowseOptions, cutPage, DEFAULT_PAGE_SIZE, readOnly } from '../../operations/browse.ts'
import { checkPageSize, checkTexts } from '../../operations/request-checks.ts'
import type { Database } from '../../postgres/database.ts'
import { type PositionalParameters, positionalParameters } from '../../postgres/parameters.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { SyncState } from '../transitions.ts'
import { stringifiable } from '../../stringifiable.ts'
import { findJob, type JobSummary } from './jobs.ts'
import { checkStates, stateSql, tablesOf } from './tables.ts'

export interface ChunkSummary {
  readonly hash: string
  readonly query: unknown
  readonly position: number
  readonly state: SyncState
  /** A job waits for it. */
  readonly needed: boolean
  /** It was fresh enough when the job was planned. */
  readonly skipped: boolean
  /** How many attempts have failed since it was last needed. */
  readonly attempts: number
  readonly nextAttemptAt: Date
  readonly lastSyncedAt: Date | null
  /** How many rows that brought. */
  readonly rowCount: number | null
  readonly completedAt: Date | null
  readonly failedAt: Date | null
  /** Why the last attempt failed. */
  readonly errorMessage: string | null
  /** The worker that syncs it now. */
  readonly lockedBy: string | null
  readonly lockedUntil: Date | null
  readonly token: bigint
}

export interface ChunkPageOptions extends BrowseOptions {
  /** Only chunks in these states. */
  readonly states?: readonly SyncState[] | undefined
  /** Default 50, at most 1,000. */
  readonly limit?: number | undefined
  /** Only chunks that come after the chunk with this hash in the plan: `next` of the page before. */
  readonly after?: string | undefined
}

export interface ChunkPage {
  readonly chunks: readonly ChunkSummary[]
  /** What `after` is for the next page; null when this was the last. */
  readonly next: string | null
}

/** The chunks of a job, page by page, in the order of its plan. */
export async function listChunks(
  db: Database,
  jobId: string,
  options: ChunkPageOptions = {},
): Promise<ChunkPage> {
  const { schema, states, limit = DEFAULT_PAGE_SIZE, after } = options
  checkStates(states)
  checkPageSize(limit)
  checkTexts({ after })
  const remedy = 'Choose fewer chunks, by state; or allow more time.'
  return readOnly(db, options, { what: 'Listing the chunks', remedy }, async (tx) => {
    const job = await findJob(tx, schema, jobId)
    const { checkpoints } = tablesOf(schema)
    const found = await findChunks(tx, schema, job, {
      // One more than the page has shows whether there is another page.
      limit: limit + 1,
      order: 'c.position, c.chunk_hash',
      where: (parameter) => [
        ...(states === undefined ? [] : [`${stateSql(schema, 'c')} = any (${parameter(states, 'text[]')})`]),
        ...(after === undefined
          ? []
          : [
              `(c.position, c.chunk_hash) > (select a.position, a.chunk_hash from ${checkpoints} as a
    where a.matrix_id = ${parameter(job.matrixId, 'text')} and a.chunk_hash = ${parameter(after, 'text')})`,
            ]),
      ],
    })
    const { rows, next } = cutPage(found, limit, ({ hash }) => hash)
    return { chunks: rows, next }
  })
}

export interface ChunkChoice {
  readonly where: (parameter: PositionalParameters) => readonly string[]
  readonly order: string
  readonly limit: number
}

/** Finds chunks c of a job, with their links l. */
export async function findChunks(
  tx: Queryable,
  schema: string | undefined,
  { id, matrixId }: JobSummary,
  { where, order, limit }: ChunkChoice,
): Promise<ChunkSummary[]> {
  const { checkpoints, links } = tablesOf(schema)
  const parameter = positionalParameters()
  const matrix = parameter(matrixId, 'text')
  const conditions = [
    `l.job_id = ${parameter(id)} and l.matrix_id = ${matrix} and c.matrix_id = ${matrix}`,
    ...where(parameter),
  ]
  const { rows } = await tx.query<Omit<ChunkSummary, 'token'> & { readonly token: string }>({
    text: `select c.chunk_hash as hash, c.chunk_query as query, c.position, ${stateSql(schema, 'c')} as state, c.needed,
  l.skipped, c.attempts, c.next_attempt_at as "nextAttemptAt", c.last_synced_at as "lastSyncedAt",
  c.row_count::float8 as "rowCount", c.completed_at as "completedAt", c.failed_at as "failedAt",
  c.error_message as "errorMessage", c.locked_by as "lockedBy", c.locked_until as "lockedUntil",
  c.lock_token::text as token
from ${links} as l
join ${checkpoints} as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
where ${conditions.join(' and ')}
order by ${order} limit ${parameter(limit, 'int')}`,
    values: parameter.values,
  })
  return rows.map((row) => stringifiable({ ...row, token: BigInt(row.token) }))
}

/**
 * Locks every unfinished chunk of the jobs. The plan of another job that is being written has a foreign key to the chunks
 * it shares, which makes this wait for it: the next statement sees which jobs need a chunk. Where the plan comes later, the
 * check of its job finds the chunks that are not needed.
 */
export async function lockChunks(tx: Queryable, schema: string, jobIds: readonly string[]): Promise<void> {
  const { checkpoints, links } = tablesOf(schema)
  await tx.query({
    text: `with locked as materialized (
  select from ${checkpoints} as c
  join ${links} as l on l.matrix_id = c.matrix_id and l.chunk_hash = c.chunk_hash
  where l.job_id = any ($1) and c.completed_at is null
  order by c.matrix_id, c.chunk_hash
  for update of c
)
select count(*) from locked`,
    values: [jobIds],
  })
}

/** How many chunks would be dropped if all of these jobs were cancelled: those that no other open job needs. */
export async function countDroppable(
  db: Queryable,
  schema: string,
  jobIds: readonly string[],
): Promise<{ readonly droppedChunks: number; readonly inFlight: number }> {
  const { jobs, checkpoints, links } = tablesOf(schema)
  const { rows } = await db.query<{ droppedChunks: number; inFlight: number }>({
    text: `with droppable as materialized (
  select distinct c.matrix_id, c.chunk_hash, c.locked_by is not null and c.locked_until > now() as in_flight
  from ${links} as l
  join ${checkpoints} as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
  where l.job_id = any ($1) and c.completed_at is null and c.failed_at is null and c.needed
    and not exists (
      select from ${links} as o join ${jobs} as j on j.id = o.job_id
      where o.matrix_id = c.matrix_id and o.chunk_hash = c.chunk_hash and not j.id = any ($1)
        and j.completed_at is null and j.failed_at is null
    )
)
select count(*)::int as "droppedChunks", (count(*) filter (where in_flight))::int as "inFlight" from droppable`,
    values: [jobIds],
  })
  return rows[0] ?? { droppedChunks: 0, inFlight: 0 }
}

export async function countUnneededInFlight(
  tx: Queryable,
  schema: string,
  jobIds: readonly string[],
): Promise<number> {
  const { checkpoints, links } = tablesOf(schema)
  const { rows } = await tx.query<{ count: number }>({
    text: `select count(*)::int as count from ${checkpoints} as c
join ${links} as l on l.matrix_id = c.matrix_id and l.chunk_hash = c.chunk_hash
where l.job_id = any ($1) and c.locked_by is not null and c.locked_until > now() and not c.needed`,
    values: [jobIds],
  })
  return rows[0]?.count ?? 0
}
