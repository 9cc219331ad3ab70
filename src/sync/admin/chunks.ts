/** The chunks of a job, one page at a time, in the order of the plan. */
import { type BrowseOptions, looking } from '../../admin/looking.ts'
import { checkPage, checkTexts } from '../../admin/request-checks.ts'
import { type Values, values } from '../../admin/statement-values.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { SyncState } from '../transitions.ts'
import { checkStates } from './states.ts'
import { findJob, type JobSummary } from './job.ts'
import { stateSql, tablesOf } from './tables.ts'

export interface ChunkSummary {
  readonly hash: string
  readonly query: unknown
  readonly position: number
  readonly state: SyncState
  /** Some job waits for it, or has waited. */
  readonly wanted: boolean
  /** It was fresh enough when the job was planned. */
  readonly skipped: boolean
  /** How many attempts have failed since it was last wanted. */
  readonly attempts: number
  readonly nextAttemptAt: Date
  readonly lastSyncedAt: Date | null
  /** How many rows that brought. */
  readonly rowCount: number | null
  readonly completedAt: Date | null
  readonly failedAt: Date | null
  /** Why the last attempt failed. */
  readonly errorMessage: string | null
  /** The worker that does it at this moment. */
  readonly lockedBy: string | null
  readonly lockedUntil: Date | null
  readonly token: bigint
}

export interface ChunkPageOptions extends BrowseOptions {
  /** Only chunks in these states. */
  readonly states?: readonly SyncState[] | undefined
  /** Default 50, at most 1,000. */
  readonly limit?: number | undefined
  /** Only what the plan has behind the chunk with this hash: where the page before ended. */
  readonly after?: string | undefined
}

export interface ChunkPage {
  readonly chunks: readonly ChunkSummary[]
  /** What `after` is for the next page; null when this was the last. */
  readonly next: string | null
}

export async function listChunks(
  db: Database,
  jobId: string,
  options: ChunkPageOptions = {},
): Promise<ChunkPage> {
  const { schema, states, limit = 50, after } = options
  checkStates(states)
  checkPage(limit)
  checkTexts({ after })
  const remedy = 'Choose fewer, or allow more time.'
  return looking(db, options, { what: 'listing the chunks', remedy }, async (tx) => {
    const job = await findJob(tx, schema, jobId)
    const { checkpoints } = tablesOf(schema)
    const found = await findChunks(tx, schema, job, {
      // One more than the page has: whether there is another.
      limit: limit + 1,
      order: 'c.position, c.chunk_hash',
      where: (value) => [
        ...(states === undefined ? [] : [`${stateSql(schema, 'c')} = any (${value(states, 'text[]')})`]),
        ...(after === undefined
          ? []
          : [
              `(c.position, c.chunk_hash) > (select a.position, a.chunk_hash from ${checkpoints} as a
    where a.matrix_id = ${value(job.matrixId, 'text')} and a.chunk_hash = ${value(after, 'text')})`,
            ]),
      ],
    })
    const chunks = found.slice(0, limit)
    return { chunks, next: found.length > limit ? (chunks.at(-1)?.hash ?? null) : null }
  })
}

export interface ChunkChoice {
  readonly where: (value: Values) => readonly string[]
  readonly order: string
  readonly limit: number
}

/** Of chunks c and their links l. */
export async function findChunks(
  tx: Queryable,
  schema: string | undefined,
  { id, matrixId }: JobSummary,
  { where, order, limit }: ChunkChoice,
): Promise<ChunkSummary[]> {
  const { checkpoints, links } = tablesOf(schema)
  const value = values()
  const matrix = value(matrixId, 'text')
  const conditions = [
    `l.job_id = ${value(id, 'bigint')} and l.matrix_id = ${matrix} and c.matrix_id = ${matrix}`,
    ...where(value),
  ]
  const { rows } = await tx.query<Omit<ChunkSummary, 'token'> & { readonly token: string }>({
    text: `select c.chunk_hash as hash, c.chunk_query as query, c.position, ${stateSql(schema, 'c')} as state, c.wanted,
  l.skipped, c.attempts, c.next_attempt_at as "nextAttemptAt", c.last_synced_at as "lastSyncedAt",
  c.row_count::float8 as "rowCount", c.completed_at as "completedAt", c.failed_at as "failedAt",
  c.error_message as "errorMessage", c.locked_by as "lockedBy", c.locked_until as "lockedUntil",
  c.lock_token::text as token
from ${links} as l
join ${checkpoints} as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
where ${conditions.join(' and ')}
order by ${order} limit ${value(limit, 'int')}`,
    values: value.all,
  })
  return rows.map((row) => ({ ...row, token: BigInt(row.token) }))
}
