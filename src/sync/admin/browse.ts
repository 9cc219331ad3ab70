/** Which jobs there are: one page at a time, newest first. */
import { type BrowseOptions, looking } from '../../admin/looking.ts'
import { checkPage, checkTexts, invalid, isRowId } from '../../admin/request-checks.ts'
import { values } from '../../admin/statement-values.ts'
import type { Database } from '../../postgres/database.ts'
import type { SyncState } from '../transitions.ts'
import { type ChunkCounts, completed, COUNTS } from './counts.ts'
import { jobColumns, type JobRow, type JobSummary, jobSummary } from './job.ts'
import { checkStates } from './states.ts'
import { stateSql, tablesOf } from './tables.ts'

export interface JobFilter {
  readonly definition?: string | undefined
  readonly matrixId?: string | undefined
  readonly states?: readonly SyncState[] | undefined
}

export interface JobPageOptions extends BrowseOptions {
  /** Default 50, at most 1,000. */
  readonly limit?: number | undefined
  /** Only jobs with smaller ids: where the page before ended. */
  readonly before?: string | undefined
}

export interface ListedJob extends JobSummary {
  readonly chunks: ChunkCounts
}

export interface JobPage {
  /** Newest first. */
  readonly jobs: readonly ListedJob[]
  /** What `before` is for the next page; null when this was the last. */
  readonly next: string | null
}

export async function listJobs(
  db: Database,
  filter: JobFilter = {},
  options: JobPageOptions = {},
): Promise<JobPage> {
  const { definition, matrixId, states } = filter
  const { schema, limit = 50, before } = options
  checkTexts({ definition, matrixId })
  checkStates(states)
  checkPage(limit)
  if (before !== undefined && !isRowId(before)) {
    throw invalid('before', before, 'Give the number of a job: `next` of the page before.')
  }
  const value = values()
  const conditions = [
    'true',
    ...(definition === undefined ? [] : [`j.definition = ${value(definition, 'text')}`]),
    ...(matrixId === undefined ? [] : [`j.matrix_id = ${value(matrixId, 'text')}`]),
    ...(states === undefined ? [] : [`${stateSql(schema, 'j')} = any (${value(states, 'text[]')})`]),
    ...(before === undefined ? [] : [`j.id < ${value(before, 'bigint')}`]),
  ]
  const { jobs, checkpoints, links } = tablesOf(schema)
  const statement = {
    // Of what is completed the links say enough. One more than the page has: whether there is another.
    text: `with page as materialized (
  select * from ${jobs} as j where ${conditions.join(' and ')} order by j.id desc limit ${value(limit + 1, 'int')}
)
select ${jobColumns(schema)}, coalesce(to_jsonb(counted), to_jsonb(ended)) as chunks
from page as j
left join lateral (
  select count(*) as total, count(*) filter (where l.skipped) as skipped
  from ${links} as l where l.job_id = j.id and l.matrix_id = j.matrix_id and j.completed_at is not null
) as ended on j.completed_at is not null
left join lateral (
  select ${COUNTS} from ${links} as l
  join ${checkpoints} as c on c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
  where l.job_id = j.id and l.matrix_id = j.matrix_id and c.matrix_id = j.matrix_id and j.completed_at is null
) as counted on j.completed_at is null
order by j.id desc`,
    values: value.all,
  }
  const remedy = 'Choose fewer, by definition, matrix or state; or allow more time.'
  return looking(db, options, { what: 'listing the jobs', remedy }, async (tx) => {
    const { rows } = await tx.query<JobRow & { readonly chunks: ChunkCounts }>(statement)
    const found = rows.map(({ chunks, ...row }): ListedJob => {
      const job = jobSummary(row)
      return { ...job, chunks: job.phase === 'completed' ? completed(chunks) : chunks }
    })
    const page = found.slice(0, limit)
    return { jobs: page, next: found.length > limit ? (page.at(-1)?.id ?? null) : null }
  })
}
