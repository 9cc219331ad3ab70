/** The tables of sync, and the state of their rows, as statements name them. */
import { checkNames } from '../../operations/request-checks.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { SYNC_STATES, type SyncState } from '../transitions.ts'

/** A job, or a chunk, that has not ended; in the words of the partial indexes. */
export const OPEN = 'completed_at is null and failed_at is null'

export interface SyncTables {
  readonly jobs: string
  readonly checkpoints: string
  /** Which chunks a job consists of. */
  readonly links: string
}

/** The tables of a schema, as statements name them. */
export function tablesOf(schema = 'leasehold'): SyncTables {
  return {
    jobs: quoteQualified(schema, 'sync_jobs'),
    checkpoints: quoteQualified(schema, 'sync_checkpoints'),
    links: quoteQualified(schema, 'sync_job_chunks'),
  }
}

/** The state of a job or a chunk, from the columns of the named table. */
export function stateSql(schema: string | undefined, table?: string): string {
  const columns = ['locked_until', 'completed_at', 'failed_at'].map((column) =>
    table === undefined ? column : `${table}.${column}`,
  )
  return `${quoteQualified(schema ?? 'leasehold', 'sync_state')}(${columns.join(', ')})`
}

export function checkStates(states: readonly SyncState[] | undefined): void {
  if (states !== undefined) checkNames('states', states, SYNC_STATES)
}
