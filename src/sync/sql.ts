/** The statements of the runner other than those of the kernel. */
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Statement } from '../postgres/queryable.ts'
import type { SyncSource } from './definition.ts'

export interface PlannedChunk {
  readonly hash: string
  /** As JSON. */
  readonly query: string
  readonly position: number
}

export interface HeldJob {
  readonly id: string
  readonly owner: string
  readonly token: bigint
}

/** What `writeChunks` answers. */
export interface PlanAnswer {
  /** False: another session has locked the job at this moment, its heartbeat perhaps, and nothing was written. */
  readonly written: boolean
}

/**
 * Writes chunks of a plan if the job's lease is still current; otherwise it writes nothing and returns no rows. It does not
 * wait for a job that another session has locked.
 *
 * Planning the same job a second time changes nothing, because freshness is measured from the creation of the job. A chunk
 * that is waiting or in flight for another job is shared: only its priority may rise.
 */
export function writeChunks(schema: string, job: HeldJob, chunks: readonly PlannedChunk[]): Statement {
  const [jobs, checkpoints, links] = ['sync_jobs', 'sync_checkpoints', 'sync_job_chunks'].map((table) =>
    quoteQualified(schema, table),
  )
  return {
    name: 'leasehold_sync_plan',
    text: `/* leasehold:plan sync_jobs */
with job as materialized (                     -- no row if the lease is no longer current
  select id, definition, matrix_id, priority, case
      when force then created_at
      when fresh_for is not null then created_at - fresh_for
      else '-infinity'
    end as stale_before
  from ${jobs}
  where id = $1 and locked_by = $2 and lock_token = $3 and locked_until > now()
  for share skip locked
),
planned as materialized (
  select job.*, c.hash, c.query::jsonb as query, c.position
  from job cross join unnest($4::text[], $5::text[], $6::int[]) as c (hash, query, position)
),
shared as materialized (                      -- waiting or in flight already, for another job
  select p.matrix_id, p.hash from planned as p
  join ${checkpoints} as c on c.matrix_id = p.matrix_id and c.chunk_hash = p.hash
  where c.completed_at is null and c.failed_at is null and (c.needed or c.locked_by is not null)
),
raised as (
  update ${checkpoints} as c set needed = true, priority = greatest(c.priority, p.priority)
  from planned as p
  where c.matrix_id = p.matrix_id and c.chunk_hash = p.hash and (p.matrix_id, p.hash) in (select * from shared)
    and c.completed_at is null and c.failed_at is null and (not c.needed or c.priority < p.priority)
),
written as (                                   -- new, or synced once more because it is not fresh enough
  insert into ${checkpoints} as c (matrix_id, chunk_hash, definition, chunk_query, priority, position)
  select matrix_id, hash, definition, query, priority, position from planned
  where (matrix_id, hash) not in (select * from shared)
  order by matrix_id, hash
  on conflict (matrix_id, chunk_hash) do update set
    definition = excluded.definition,
    chunk_query = excluded.chunk_query,
    priority = excluded.priority,
    position = excluded.position,
    needed = true,
    completed_at = null,
    failed_at = null,
    error_message = null,
    attempts = 0,
    expiries = 0,
    next_attempt_at = now()
  where c.locked_by is null
    and (c.completed_at is null or c.definition <> excluded.definition or c.last_synced_at < (select stale_before from job))
    and not (c.needed and c.completed_at is null and c.failed_at is null)
  returning matrix_id, chunk_hash
),
fresh as materialized (                       -- synced before, and recently enough: the job skips it
  select p.matrix_id, p.hash from planned as p
  join ${checkpoints} as c on c.matrix_id = p.matrix_id and c.chunk_hash = p.hash
  where c.completed_at is not null and c.definition = p.definition and c.last_synced_at >= p.stale_before
),
linked as (
  insert into ${links} (job_id, matrix_id, chunk_hash, skipped)
  select p.id, p.matrix_id, p.hash, (p.matrix_id, p.hash) in (select * from fresh) and not (p.matrix_id, p.hash) in (select * from written)
  from planned as p
  on conflict (job_id, matrix_id, chunk_hash) do nothing
)
select exists (select from job) as written
from ${jobs}
where id = $1 and locked_by = $2 and lock_token = $3 and locked_until > now()`,
    values: [
      job.id,
      job.owner,
      String(job.token),
      chunks.map(({ hash }) => hash),
      chunks.map(({ query }) => query),
      chunks.map(({ position }) => position),
    ],
  }
}

export interface ChunkCounts {
  readonly open: number
  readonly failed: number
  /** Open, but not needed by any job, so that no runner would claim them. */
  readonly orphaned: number
  readonly first_error: string | null
}

/** Counts the chunks of a job that are open, failed or orphaned. */
export function countOpen(schema: string, jobId: string): Statement {
  return {
    name: 'leasehold_sync_open',
    text: `/* leasehold:check sync_jobs */
select count(*) filter (where c.completed_at is null and c.failed_at is null)::int as open,
  count(*) filter (where c.failed_at is not null)::int as failed,
  count(*) filter (where c.completed_at is null and c.failed_at is null and not c.needed)::int as orphaned,
  (array_agg(c.error_message order by c.failed_at) filter (where c.failed_at is not null))[1] as first_error
from ${quoteQualified(schema, 'sync_job_chunks')} as l
join ${quoteQualified(schema, 'sync_checkpoints')} as c using (matrix_id, chunk_hash)
where l.job_id = $1`,
    values: [jobId],
  }
}

/**
 * Marks the open chunks of a job as needed. A job that ends while another is planned can unmark a chunk that the other waits
 * for; the next check of that other job finds it and calls this.
 */
export function markNeeded(schema: string, jobId: string): Statement {
  return {
    text: `/* leasehold:mark needed sync_checkpoints */
update ${quoteQualified(schema, 'sync_checkpoints')} as c set needed = true
from ${quoteQualified(schema, 'sync_job_chunks')} as l
where l.job_id = $1 and c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
  and c.completed_at is null and c.failed_at is null and not c.needed`,
    values: [jobId],
  }
}

/** Unmarks the open chunks of a job, except those that another open job waits for. Chunks in flight are still finished. */
export function unmarkNeeded(schema: string, jobId: string): Statement {
  return {
    text: `/* leasehold:unmark needed sync_checkpoints */
update ${quoteQualified(schema, 'sync_checkpoints')} as c set needed = false
from ${quoteQualified(schema, 'sync_job_chunks')} as l
where l.job_id = $1 and c.matrix_id = l.matrix_id and c.chunk_hash = l.chunk_hash
  and c.completed_at is null and c.failed_at is null and c.needed
  and not exists (
    select from ${quoteQualified(schema, 'sync_job_chunks')} as o
    join ${quoteQualified(schema, 'sync_jobs')} as j on j.id = o.job_id
    where o.matrix_id = c.matrix_id and o.chunk_hash = c.chunk_hash and o.job_id <> $1
      and j.completed_at is null and j.failed_at is null
  )`,
    values: [jobId],
  }
}

/** Reserves calls to a source and returns the time to wait; returns null and reserves nothing if that exceeds `withinMs`. */
export function reserve(
  schema: string,
  { name, perSecond, burst = 1 }: SyncSource,
  calls: number,
  withinMs: number,
): Statement {
  return {
    name: 'leasehold_sync_reserve',
    text: `/* leasehold:reserve sync_sources */ select ${quoteQualified(schema, 'sync_reserve')}($1, $2, $3, $4, $5) as wait_ms`,
    values: [name, calls, perSecond, burst, withinMs],
  }
}

export function wakeChunks(schema: string): Statement {
  return { text: `/* leasehold:wake sync */ select ${quoteQualified(schema, 'wake')}('sync')` }
}

/**
 * Makes the planned jobs due for which there is something to do: no chunk is open any more, an open one is orphaned, or one
 * has failed and the definition stops at that. It reads one index entry of each job that waits, and counts nothing, so that
 * it can be run every second for thousands of jobs. It returns whether there are planned jobs at all.
 */
export function makeDue(
  schema: string,
  definitions: readonly string[],
  stopping: readonly string[],
): Statement {
  const [jobs, checkpoints, links] = ['sync_jobs', 'sync_checkpoints', 'sync_job_chunks'].map((table) =>
    quoteQualified(schema, table),
  )
  // A scalar subquery, unlike EXISTS, is always run for each job along the index.
  const first = (condition: string): string => `(
      select true from ${checkpoints} as c
      join ${links} as l on l.job_id = j.id and l.matrix_id = c.matrix_id and l.chunk_hash = c.chunk_hash
      where c.matrix_id = j.matrix_id and c.completed_at is null and ${condition}
      limit 1
    )`
  return {
    name: 'leasehold_sync_due',
    text: `/* leasehold:due sync_jobs */
with changed as materialized (
  select j.id from ${jobs} as j
  where j.definition = any ($1::text[]) and j.completed_at is null and j.failed_at is null
    and j.planned_at is not null and j.next_check_at > now() and j.locked_by is null
    and (
    -- no chunk is open
    ${first('c.failed_at is null')} is null
    -- an open chunk is needed by no job, so that no runner would claim it
    or ${first('c.failed_at is null and not c.needed')}
    or (j.definition = any ($2::text[]) and ${first('c.failed_at is not null')})
    )
  for update of j skip locked
),
due as (
  update ${jobs} as j set next_check_at = now() from changed where j.id = changed.id returning j.id
)
select exists (
    select from ${jobs} as j
    where j.definition = any ($1::text[]) and j.completed_at is null and j.failed_at is null and j.planned_at is not null
  ) as waiting,
  (select ${quoteQualified(schema, 'wake')}('sync-jobs')::text where exists (select from due))`,
    values: [definitions, stopping],
  }
}
