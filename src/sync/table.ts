import { leaseTable } from '../lease/declaration.ts'
import type { LeaseTable } from '../lease/table.ts'

export interface SyncTableOptions {
  readonly schema?: string | undefined
}

/** A job as a runner claims it. */
export interface JobRow {
  readonly id: string
  readonly definition: string
  readonly matrix_id: string
  readonly params: unknown
  readonly priority: number
  readonly force: boolean
  readonly attempts: number
  readonly created_at: Date
  readonly planned_at: Date | null
}

/** A chunk as a runner claims it. */
export interface ChunkRow {
  readonly matrix_id: string
  readonly chunk_hash: string
  readonly definition: string
  readonly chunk_query: unknown
  readonly attempts: number
}

/** SYNC-01: a row is in progress exactly while it has a current lease. */
const LEASE = { owner: 'locked_by', until: 'locked_until', token: 'lock_token' } as const
const OPEN = 'completed_at is null and failed_at is null'
/**
 * No maximum of attempts is declared here: each definition states its own, and only a runner that has the definition gives
 * a row up. A process that reaps rows of definitions it does not have therefore never gives one up.
 */
const ATTEMPTS = { error: 'error_message' } as const
const EXPIRED_ERROR =
  "'the lease expired: its worker died, lost the database connection, or took longer than maxLeases allows'"

/** `sync_jobs`: SYNC-04 to SYNC-07. A job is leased while it is planned, and for each check whether its chunks are done. */
export function jobTable({ schema = 'leasehold' }: SyncTableOptions = {}): LeaseTable<
  'done' | 'planned' | 'waiting' | 'retry' | 'dead'
> {
  return leaseTable({
    table: { schema, name: 'sync_jobs' },
    lease: LEASE,
    claimable: OPEN,
    availableAt: 'next_check_at',
    createdAt: 'created_at',
    order: ['priority desc', 'created_at', 'id'],
    leased: `${OPEN} and locked_by is not null`,
    attempts: ATTEMPTS,
    groups: 'definition',
    expired: { error: EXPIRED_ERROR },
    writes: { release: { next_check_at: "now() + $delay_ms * interval '1 millisecond'" } },
    outcomes: {
      done: { completed_at: 'now()', error_message: 'null' },
      planned: {
        planned_at: 'now()',
        next_check_at: 'now()',
        attempts: '0',
        expiries: '0',
        error_message: 'null',
      },
      waiting: {
        set: { next_check_at: "now() + $delay_ms * interval '1 millisecond'", attempts: '0', expiries: '0' },
        args: { delay_ms: 'float8' },
      },
      // Also what becomes of a job whose attempts are used up before it is tried: no attempt is counted here.
      dead: { failed_at: 'now()', attempts: 'attempts' },
    },
    columns: [
      'id',
      'definition',
      'matrix_id',
      'params',
      'priority',
      'force',
      'attempts',
      'created_at',
      'planned_at',
    ],
  })
}

/** `sync_checkpoints`: SYNC-08 and SYNC-09, by matrix and hash (D7). */
export function chunkTable({ schema = 'leasehold' }: SyncTableOptions = {}): LeaseTable<
  'done' | 'retry' | 'dead' | 'exhausted' | 'postponed'
> {
  return leaseTable({
    table: { schema, name: 'sync_checkpoints' },
    id: ['matrix_id', 'chunk_hash'],
    lease: LEASE,
    claimable: `${OPEN} and needed`,
    availableAt: 'next_attempt_at',
    order: ['priority desc', 'position', 'matrix_id', 'chunk_hash'],
    leased: `${OPEN} and locked_by is not null`,
    attempts: ATTEMPTS,
    groups: 'definition',
    expired: { error: EXPIRED_ERROR },
    writes: { release: { next_attempt_at: "now() + $delay_ms * interval '1 millisecond'" } },
    outcomes: {
      done: {
        set: {
          completed_at: 'now()',
          last_synced_at: 'now()',
          row_count: '$rows',
          attempts: '0',
          error_message: 'null',
        },
        args: { rows: 'bigint' },
      },
      dead: { failed_at: 'now()' },
      /** Given up without another attempt, because the leases of the last ones expired. */
      exhausted: { set: { failed_at: 'now()', error_message: '$error' }, args: { error: 'text' } },
      /** No attempt was made: the rate of the source left no room. */
      postponed: {
        set: { next_attempt_at: "now() + $delay_ms * interval '1 millisecond'" },
        args: { delay_ms: 'float8' },
      },
    },
    columns: ['matrix_id', 'chunk_hash', 'definition', 'chunk_query', 'attempts'],
  })
}
