/** Sync in `leasehold status`: how many jobs there are of each kind, what waits, and how far the open ones have come. */
import type { Count } from '../admin/counting.ts'
import { isMissingTable } from '../postgres/failures.ts'
import type { Database } from '../postgres/index.ts'
import { countSync, type SyncCounts } from '../sync/admin/count-all.ts'
import { progressOfAll, type ProgressOfAll } from '../sync/admin/progress.ts'
import { jobsText } from './sync/progress-text.ts'
import { jobJson } from './sync/status.ts'
import { columns, grouped } from './text-columns.ts'

export interface SyncStatus {
  readonly counts: SyncCounts
  readonly progress: ProgressOfAll
}

type Read = SyncStatus | { readonly problem: string }

const LOOK_TIMEOUT_MS = 5_000
const SHOWN_JOBS = 10

/** What is known; or why it is not. */
export async function readSync(db: Database, schema: string): Promise<Read> {
  const options = { schema, timeoutMs: LOOK_TIMEOUT_MS }
  try {
    return {
      counts: await countSync(db, options),
      progress: await progressOfAll(db, { ...options, limit: SHOWN_JOBS }),
    }
  } catch (error) {
    if (isMissingTable(error))
      return { problem: `the schema ${schema} has no sync yet: run \`leasehold migrate\`` }
    return { problem: error instanceof Error ? error.message : String(error) }
  }
}

export function syncText(read: Read, schema: string, width: number | undefined): string {
  const name = `${schema}.sync_jobs`
  if ('problem' in read) return `${name}: ${read.problem}`
  const { counts, progress } = read
  const { open, completed, failed, chunksWaiting, chunksLeased } = counts
  const line = [name, ...[open, completed, failed, chunksWaiting, chunksLeased].map(shown)]
  const headings = ['SYNC', 'OPEN', 'COMPLETED', 'FAILED', 'CHUNKS WAITING', 'CHUNKS LEASED']
  const table = columns([headings, line])
  if (progress.jobs.length === 0) return table
  const failures = progress.jobs.some(({ phase }) => phase === 'failed')
    ? "\nWhat has failed can be tried once more: `leasehold sync retry <job> --reason '…'`."
    : ''
  return `${table}\n\n${jobsText(progress, width)}${failures}`
}

export function syncJson(read: Read): unknown {
  if ('problem' in read) return read
  const { jobs, more } = read.progress
  return { counts: read.counts, jobs: jobs.map(jobJson), moreJobs: more }
}

function shown({ count, exact }: Count): string {
  return exact ? grouped(count) : `about ${grouped(count)}`
}
