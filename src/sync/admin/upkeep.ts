/**
 * What sync needs now and then: jobs that ended long ago are removed, a few at a time. Their checkpoints stay: they say
 * what is synced, and the next job skips it.
 *
 * Any number may run at once: each statement is short, and steps over what somebody else has locked.
 */
import { checkGentleness, checkKept, type Gentleness, inBatches, type Round } from '../../admin/rounds.ts'
import type { Database } from '../../postgres/database.ts'
import type { Statement } from '../../postgres/queryable.ts'
import { tablesOf } from './tables.ts'

/** How long ended jobs are kept, and how gently they are removed. */
export interface SyncRetention extends Gentleness {
  /** How long a completed one is kept. Null: for ever. Default 30 days. */
  readonly completedMs?: number | null | undefined
  /** How long a failed one is kept. Null: for ever. Default 30 days. */
  readonly failedMs?: number | null | undefined
}

export interface SyncUpkeepOptions extends SyncRetention {
  readonly schema?: string | undefined
}

export type SyncUpkeepDone = {
  /** How many jobs were removed. */
  readonly jobs: number
  /** How many chunks were no longer wanted: two jobs that ended at the same moment each took the other for open. */
  readonly unwanted: number
}

const DAY_MS = 86_400_000

/** One round. */
export async function syncUpkeep(
  db: Database,
  options: SyncUpkeepOptions = {},
  signal?: AbortSignal,
): Promise<SyncUpkeepDone> {
  const { schema = 'leasehold', completedMs = 30 * DAY_MS, failedMs = 30 * DAY_MS } = options
  checkKept({ completedMs, failedMs })
  const round: Round = { schema, signal, ...checkGentleness(options) }
  const unwanted = await inBatches(round, async () => {
    const dropped = (await db.query(dropForsaken(round))).rowCount ?? 0
    return { done: dropped, more: dropped === round.batch }
  })
  const remove = async (end: 'completed_at' | 'failed_at', keptMs: number | null): Promise<number> => {
    if (keptMs === null) return 0
    return inBatches(round, async () => {
      const removed = (await db.query(removeEnded(round, end, keptMs))).rowCount ?? 0
      return { done: removed, more: removed > 0 }
    })
  }
  const completed = await remove('completed_at', completedMs)
  return { jobs: completed + (await remove('failed_at', failedMs)), unwanted }
}

/** Open chunks that no open job consists of. Those in flight are finished. */
function dropForsaken({ schema, batch }: Round): Statement {
  const { jobs, links, checkpoints } = tablesOf(schema)
  return {
    text: `with forsaken as materialized (
  select c.matrix_id, c.chunk_hash
  from ${checkpoints} as c
  where c.completed_at is null and c.failed_at is null and c.wanted
    and not exists (
      select from ${links} as l join ${jobs} as j on j.id = l.job_id
      where l.matrix_id = c.matrix_id and l.chunk_hash = c.chunk_hash
        and j.completed_at is null and j.failed_at is null
    )
  limit $1::int
  for update of c skip locked
)
update ${checkpoints} as c set wanted = false
from forsaken as f
where c.matrix_id = f.matrix_id and c.chunk_hash = f.chunk_hash`,
    values: [batch],
  }
}

/**
 * Jobs that ended long ago, by the database's clock and counted from their end (D11). A job goes whole, or an operator
 * could retry one of which half is gone. It takes the links to its chunks with it, so that these are what is counted:
 * jobs up to the batch together, or one that is larger than that alone.
 */
function removeEnded({ schema, batch }: Round, end: 'completed_at' | 'failed_at', keptMs: number): Statement {
  const { jobs, links } = tablesOf(schema)
  return {
    text: `with ended as materialized (
  select id from ${jobs}
  where ${end} < now() - $1::float8 * interval '1 millisecond'
  order by ${end}, id limit $2::int
  for update skip locked
),
sized as materialized (
  select id, 1 + (select count(*) from ${links} as l where l.job_id = ended.id) as size from ended
),
summed as materialized (select id, size, sum(size) over (order by id) as up_to_here from sized)
delete from ${jobs}
where id = any (array(
  select id from summed where up_to_here <= $2::int or up_to_here = size
))`,
    values: [keptMs, batch],
  }
}
