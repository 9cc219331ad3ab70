import { quoteQualified } from '../../postgres/identifiers.ts'

export interface SyncTables {
  readonly jobs: string
  readonly checkpoints: string
  /** Which chunks a job consists of. */
  readonly links: string
}

export function tablesOf(schema = 'leasehold'): SyncTables {
  return {
    jobs: quoteQualified(schema, 'sync_jobs'),
    checkpoints: quoteQualified(schema, 'sync_checkpoints'),
    links: quoteQualified(schema, 'sync_job_chunks'),
  }
}

/** The state of a job or a chunk, by the columns of the table that is named. */
export function stateSql(schema: string | undefined, table: string): string {
  const state = quoteQualified(schema ?? 'leasehold', 'sync_state')
  return `${state}(${table}.locked_until, ${table}.completed_at, ${table}.failed_at)`
}
