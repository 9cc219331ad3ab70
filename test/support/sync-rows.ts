import { rowId } from '../../src/lease/lease.ts'
import type { Database } from '../../src/postgres/database.ts'
import type { Events } from '../../src/worker/index.ts'
import type { SyncState } from '../../src/sync/transitions.ts'

export interface JobRecord {
  readonly id: string
  readonly state: SyncState
  readonly definition: string
  readonly matrix_id: string
  readonly attempts: number
  readonly expiries: number
  readonly planned_at: Date | null
  readonly next_check_at: Date
  readonly completed_at: Date | null
  readonly failed_at: Date | null
  readonly error_message: string | null
  readonly locked_until: Date | null
  readonly locked_by: string | null
  readonly lock_token: string
  /** The version of the row. It changes with every write, even one of the same values. */
  readonly xmin: string
}

export interface ChunkRecord {
  readonly matrix_id: string
  readonly chunk_hash: string
  readonly state: SyncState
  readonly definition: string
  readonly chunk_query: unknown
  readonly needed: boolean
  readonly priority: number
  readonly attempts: number
  readonly expiries: number
  readonly next_attempt_at: Date
  readonly last_synced_at: Date | null
  readonly row_count: string | null
  readonly completed_at: Date | null
  readonly failed_at: Date | null
  readonly error_message: string | null
  readonly locked_until: Date | null
  readonly locked_by: string | null
  readonly lock_token: string
  readonly xmin: string
}

const withState = (table: string): string =>
  `select leasehold.sync_state(locked_until, completed_at, failed_at) as state, xmin::text, r.* from leasehold.${table} as r`

export async function syncJobs(db: Database): Promise<JobRecord[]> {
  return (await db.query<JobRecord>({ text: `${withState('sync_jobs')} order by id` })).rows
}

export async function syncChunks(db: Database): Promise<ChunkRecord[]> {
  return (
    await db.query<ChunkRecord>({
      text: `${withState('sync_checkpoints')} order by matrix_id, position, chunk_hash`,
    })
  ).rows
}

/** How many rows are in each state. */
export function statesOf(rows: readonly { readonly state: SyncState }[]): Partial<Record<SyncState, number>> {
  const counts: Partial<Record<SyncState, number>> = {}
  for (const { state } of rows) counts[state] = (counts[state] ?? 0) + 1
  return counts
}

export async function emptySync(db: Database): Promise<void> {
  await db.query({
    text: `truncate leasehold.sync_jobs, leasehold.sync_checkpoints, leasehold.sync_job_chunks, leasehold.sync_sources,
  leasehold.audit restart identity`,
  })
}

/** Inserts claimable jobs: the first half of definition a, the second half of definition b. */
export async function insertSyncJobs(
  db: Database,
  count: number,
  more: Readonly<Record<string, string>> = {},
): Promise<string[]> {
  const columns = Object.keys(more).map((column) => `, ${column}`)
  const values = Object.values(more).map((value) => `, ${value}`)
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.sync_jobs (definition, matrix_id${columns.join('')})
      select case when n * 2 > $1::int and $1 > 1 then 'b' else 'a' end, 'm' || n${values.join('')}
      from generate_series(1, $1::int) as n returning id`,
    values: [count],
  })
  return rows.map(({ id }) => id)
}

export async function insertSyncChunks(
  db: Database,
  count: number,
  matrices: readonly string[] = ['m'],
): Promise<string[]> {
  const { rows } = await db.query<{ matrix: string; hash: string }>({
    text: `insert into leasehold.sync_checkpoints (matrix_id, chunk_hash, definition, chunk_query, position)
      select matrix, 'h' || n, case when n * 2 > $1::int and $1 > 1 then 'b' else 'a' end, '{}', n
      from generate_series(1, $1::int) as n, unnest($2::text[]) as matrix order by n, matrix
      returning matrix_id as matrix, chunk_hash as hash`,
    values: [count, matrices],
  })
  return rows.map(({ matrix, hash }) => rowId(matrix, hash))
}

/** Records from now on how jobs end. `ended` waits for one of them, which may have ended already. */
export function watchJobs(...heard: readonly Events[]): {
  ended(jobId: string): Promise<'done' | 'dead'>
} {
  const ends = new Map<string, 'done' | 'dead'>()
  const waiting = new Set<() => void>()
  for (const events of heard) {
    events.on('settled', ({ table, outcome, ids }) => {
      if (!table.endsWith('sync_jobs') || (outcome !== 'done' && outcome !== 'dead')) return
      for (const id of ids) ends.set(id, outcome)
      for (const check of waiting) check()
    })
  }
  return {
    ended: async (jobId) =>
      new Promise((resolve) => {
        const check = (): void => {
          const end = ends.get(jobId)
          if (end === undefined) return
          waiting.delete(check)
          resolve(end)
        }
        waiting.add(check)
        check()
      }),
  }
}

/** A promise and the function that resolves it. */
export function gate<Value = void>(): {
  readonly opened: Promise<Value>
  readonly open: (value: Value) => void
} {
  let open: (value: Value) => void = () => undefined
  const opened = new Promise<Value>((resolve) => {
    open = resolve
  })
  return { opened, open }
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
  /** How long ago it was created and planned. */
  readonly agoMs?: number
  /** How long ago it ended. Default: just now. */
  readonly endedAgoMs?: number
}

/** Inserts one job in a given state and returns its id. */
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
  /** How long ago they were completed, or failed for good. */
  readonly agoMs?: number
  /** The number of the first. Default 1. */
  readonly from?: number
}

/** Inserts chunks of a job in a given state. Their hashes are c1, c2, … */
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
  insert into leasehold.sync_checkpoints (matrix_id, chunk_hash, definition, chunk_query, needed, position, attempts,
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

/** Adds the chunks of another job to this job. */
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
  readonly needed: boolean
  readonly attempts: number
  readonly error: string | null
  readonly owner: string | null
  readonly token: string
}

export async function chunkStates(db: Database): Promise<ChunkState[]> {
  const { rows } = await db.query<ChunkState>({
    text: `select chunk_hash as hash, state, needed, attempts, error_message as error, locked_by as owner, lock_token::text as token
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
