/** Jobs and chunks in every state. */
import type { Database } from '../../src/postgres/database.ts'

export async function emptySync(db: Database): Promise<void> {
  await db.query({
    text: `truncate leasehold.sync_jobs, leasehold.sync_checkpoints, leasehold.sync_job_chunks, leasehold.sync_sources,
  leasehold.audit restart identity`,
  })
}

export interface MadeJob {
  readonly definition?: string
  readonly matrix?: string
  readonly planned?: boolean
  readonly state?: 'completed' | 'failed'
  readonly error?: string
  /** The worker that holds it. */
  readonly owner?: string
  readonly parallel?: boolean
  readonly priority?: number
  /** How long ago it was asked for and planned. */
  readonly agoMs?: number
  /** How long ago it ended. Default: just now. */
  readonly endedAgoMs?: number
}

/** Writes one job and returns its id. */
export async function makeJob(db: Database, made: MadeJob = {}): Promise<string> {
  const { definition = 'numbers', matrix = 'm', planned = true, state, owner, agoMs = 0 } = made
  const ago = (ms: number): string => `now() - ${ms} * interval '1 millisecond'`
  const ended = ago(made.endedAgoMs ?? 0)
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.sync_jobs
  (definition, matrix_id, priority, parallel, created_at, planned_at, completed_at, failed_at, error_message,
   locked_by, locked_until, lock_token)
values ($1, $2, $3, $4, ${ago(agoMs)}, ${planned ? ago(agoMs) : 'null'}, ${state === 'completed' ? ended : 'null'},
  ${state === 'failed' ? ended : 'null'}, $5, $6::text, case when $6::text is null then null else now() + interval '1 hour' end,
  case when $6::text is null then 0 else 1 end)
returning id::text as id`,
    values: [
      definition,
      matrix,
      made.priority ?? 0,
      made.parallel ?? false,
      made.error ?? null,
      owner ?? null,
    ],
  })
  return rows[0]?.id ?? ''
}

export interface MadeChunks {
  readonly state?: 'waiting' | 'running' | 'expired' | 'done' | 'skipped' | 'failed' | 'dropped'
  readonly matrix?: string
  readonly definition?: string
  readonly rows?: number
  readonly attempts?: number
  readonly error?: string
  readonly owner?: string
  /** How long ago they were done, or given up. */
  readonly agoMs?: number
  /** The number of the first. Default 1. */
  readonly from?: number
}

/** Writes so many chunks of a job; their hashes are c1, c2, … */
export async function makeChunks(
  db: Database,
  jobId: string,
  count: number,
  made: MadeChunks = {},
): Promise<void> {
  const { state = 'waiting', matrix = 'm', definition = 'numbers', agoMs = 0, from = 1, attempts = 0 } = made
  const moment = `now() - ${agoMs} * interval '1 millisecond'`
  const done = state === 'done' || state === 'skipped'
  const leased = state === 'running' || state === 'expired'
  await db.query({
    text: `with written as (
  insert into leasehold.sync_checkpoints (matrix_id, chunk_hash, definition, chunk_query, wanted, position, attempts,
    last_synced_at, row_count, completed_at, failed_at, error_message, locked_by, locked_until, lock_token)
  select $2::text, 'c' || n, $3::text, jsonb_build_object('n', n), ${state !== 'dropped'}, n, $4::int,
    ${done ? moment : 'null'}, ${done ? (made.rows ?? 1) : 'null'}, ${done ? moment : 'null'},
    ${state === 'failed' ? moment : 'null'}, $5::text, ${leased ? '$6::text' : 'nullif($6::text, $6::text)'},
    ${leased ? `now() ${state === 'running' ? '+' : '-'} interval '1 minute'` : 'null'}, ${leased ? 1 : 0}
  from generate_series($7::int, $7::int + $8::int - 1) as n
  returning matrix_id, chunk_hash
)
insert into leasehold.sync_job_chunks (job_id, matrix_id, chunk_hash, skipped)
select $1::bigint, matrix_id, chunk_hash, ${state === 'skipped'} from written`,
    values: [jobId, matrix, definition, attempts, made.error ?? null, made.owner ?? 'host-1', from, count],
  })
}

/** The job consists of these chunks of another one too. */
export async function shareChunks(db: Database, jobId: string, fromJobId: string): Promise<void> {
  await db.query({
    text: `insert into leasehold.sync_job_chunks (job_id, matrix_id, chunk_hash, skipped)
select $1, matrix_id, chunk_hash, false from leasehold.sync_job_chunks where job_id = $2`,
    values: [jobId, fromJobId],
  })
}

export interface ChunkState {
  readonly hash: string
  readonly state: string
  readonly wanted: boolean
  readonly attempts: number
  readonly error: string | null
  readonly owner: string | null
  readonly token: string
}

export async function chunkStates(db: Database): Promise<ChunkState[]> {
  const { rows } = await db.query<ChunkState>({
    text: `select chunk_hash as hash, state, wanted, attempts, error_message as error, locked_by as owner, lock_token::text as token
from leasehold.sync_checkpoint_states order by position, chunk_hash`,
  })
  return rows
}

export interface JobState {
  readonly id: string
  readonly state: string
  readonly error: string | null
  readonly owner: string | null
  readonly attempts: number
}

export async function jobStates(db: Database): Promise<JobState[]> {
  const { rows } = await db.query<JobState>({
    text: `select id::text as id, state, error_message as error, locked_by as owner, attempts
from leasehold.sync_job_states as j order by j.id`,
  })
  return rows
}
