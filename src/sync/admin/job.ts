/** One job: what operators see of it, and how they get hold of it. */
import { LeaseholdError } from '../../errors.ts'
import { invalid, isRowId } from '../../admin/request-checks.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { SyncState } from '../transitions.ts'
import { stateSql, tablesOf } from './tables.ts'

export interface JobSummary {
  readonly id: string
  readonly definition: string
  readonly matrixId: string
  readonly params: unknown
  readonly priority: number
  readonly force: boolean
  readonly freshForMs: number | null
  readonly parallel: boolean
  /** Of its own lease and its ends: one whose chunks are being done is `AVAILABLE` between two looks at it. */
  readonly state: SyncState
  /** Where it stands, for a person. */
  readonly phase: JobPhase
  readonly createdAt: Date
  /** When all of its chunks were known. */
  readonly plannedAt: Date | null
  readonly nextLookAt: Date
  /** How often planning it has failed in a row. */
  readonly attempts: number
  readonly completedAt: Date | null
  readonly failedAt: Date | null
  readonly errorMessage: string | null
  /** The worker that plans it, or looks at it, at this moment. */
  readonly lockedBy: string | null
  readonly lockedUntil: Date | null
  readonly token: bigint
}

/**
 * - `waiting`: nobody plans it at this moment, and not all of its chunks are known.
 * - `planning`: somebody does; chunks that are known are done meanwhile.
 * - `syncing`: all of its chunks are known, and some are still to be done.
 */
export type JobPhase = 'waiting' | 'planning' | 'syncing' | 'completed' | 'failed'

export type JobRow = Omit<JobSummary, 'token' | 'phase'> & { readonly token: string }

/** The columns of a job j. */
export function jobColumns(schema: string | undefined): string {
  return `j.id::text as id, j.definition, j.matrix_id as "matrixId", j.params, j.priority, j.force,
  (extract(epoch from j.fresh_for) * 1000)::float8 as "freshForMs", j.parallel, ${stateSql(schema, 'j')} as state,
  j.created_at as "createdAt", j.planned_at as "plannedAt", j.next_check_at as "nextLookAt", j.attempts,
  j.completed_at as "completedAt", j.failed_at as "failedAt", j.error_message as "errorMessage",
  j.locked_by as "lockedBy", j.locked_until as "lockedUntil", j.lock_token::text as token`
}

export function jobSummary(row: JobRow): JobSummary {
  return { ...row, token: BigInt(row.token), phase: phaseOf(row) }
}

function phaseOf({ state, plannedAt }: JobRow): JobPhase {
  if (state === 'COMPLETED') return 'completed'
  if (state === 'FAILED') return 'failed'
  if (plannedAt !== null) return 'syncing'
  return state === 'RUNNING' ? 'planning' : 'waiting'
}

/** Finds it; `hold` keeps everybody from changing it until the transaction ends. */
export async function findJob(
  tx: Queryable,
  schema: string | undefined,
  jobId: string,
  { hold = false }: { readonly hold?: boolean } = {},
): Promise<JobSummary> {
  checkJobId(jobId)
  const { rows } = await tx.query<JobRow>({
    text: `select ${jobColumns(schema)} from ${tablesOf(schema).jobs} as j where j.id = $1::bigint${hold ? ' for update' : ''}`,
    values: [jobId],
  })
  const [row] = rows
  if (row !== undefined) return jobSummary(row)
  throw new LeaseholdError('JOB_NOT_FOUND', `No sync job has the id ${jobId}.`, {
    remedy: '`leasehold sync list` shows what is there; retention may have removed it.',
  })
}

export function checkJobId(jobId: string): void {
  if (!isRowId(jobId)) throw invalid('jobId', jobId, 'Give the number of a sync job.')
}
