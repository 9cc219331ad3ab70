/** Jobs and chunks of a sync, as the tables have them. */
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
  readonly next_look_at: Date
  readonly completed_at: Date | null
  readonly failed_at: Date | null
  readonly error_message: string | null
  readonly locked_until: Date | null
  readonly locked_by: string | null
  readonly lock_token: string
  /** Of this version of the row: another one means that somebody has written it, be it the same values. */
  readonly xmin: string
}

export interface ChunkRecord {
  readonly matrix_id: string
  readonly chunk_hash: string
  readonly state: SyncState
  readonly definition: string
  readonly chunk_query: unknown
  readonly wanted: boolean
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
    text: 'truncate leasehold.sync_jobs, leasehold.sync_checkpoints, leasehold.sync_job_chunks, leasehold.sync_sources',
  })
}

/** Jobs that can be claimed at once, half of them for each of the definitions a and b, in this order. */
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

/** Hears from now on how jobs end; `ended` waits for one of them, also where it has ended already. */
export function watchJobs(...heard: readonly Events[]): {
  ended(jobId: string): Promise<'done' | 'dead'>
} {
  const ends = new Map<string, 'done' | 'dead'>()
  const waiting = new Set<() => void>()
  for (const events of heard) {
    events.on('settled', ({ table, outcome, ids }) => {
      if (!table.endsWith('sync_jobs') || (outcome !== 'done' && outcome !== 'dead')) return
      for (const id of ids) ends.set(id, outcome)
      for (const look of waiting) look()
    })
  }
  return {
    ended: async (jobId) =>
      new Promise((resolve) => {
        const look = (): void => {
          const end = ends.get(jobId)
          if (end === undefined) return
          waiting.delete(look)
          resolve(end)
        }
        waiting.add(look)
        look()
      }),
  }
}

/** A promise, and what keeps it. */
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
