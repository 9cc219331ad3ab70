/**
 * Removes what is finished and old enough, a little at a time (docs/decisions/008-retention.md).
 *
 * - PUBLISHED events are kept for a time after their publication, DEAD ones for a time after they were given up, by the
 *   clock of the database (D11). What is PENDING or CLAIMED is never touched, and neither is a parked event: removing it
 *   would let its key go on without anybody having decided that.
 * - What consumers remember in the inbox is kept for as long as an event could still be replayed.
 * - A round goes along the primary key, and for dead events along their own index, from the lowest id on. It ends where
 *   all events of a batch were written too recently to have been finished long enough ago. Ids are nearly in the order
 *   of time: what a round steps over (a row that somebody had locked, a replayed one) the next one finds.
 * - Each batch is one short statement that locks nothing for others to wait on.
 */
import {
  checkGentleness,
  checkKept,
  type Gentleness,
  inBatches,
  removeAlongIds,
  type Round,
} from '../../admin/rounds.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { forgetOldSql } from '../inbox.ts'
import { bucketsOf, outboxOf } from './browse-buckets.ts'

/** How long events are kept, and how gently they are removed. */
export interface Retention extends Gentleness {
  /** How long an event is kept after it was published. Null: for ever. Default 7 days. */
  readonly publishedMs?: number | null | undefined
  /** How long an event is kept after it was given up. Null: for ever. Default 90 days. */
  readonly deadMs?: number | null | undefined
}

export interface RetentionOptions extends Retention {
  readonly schema?: string | undefined
  /** Ends the round after the batch that is being removed. */
  readonly signal?: AbortSignal | undefined
}

export type Removed = {
  readonly published: number
  readonly dead: number
  /** What consumers had remembered. */
  readonly inbox: number
}

const DAY_MS = 86_400_000

/** One round. */
export async function applyRetention(db: Queryable, options: RetentionOptions = {}): Promise<Removed> {
  const { schema = 'leasehold', signal, publishedMs = 7 * DAY_MS, deadMs = 90 * DAY_MS } = options
  checkKept({ publishedMs, deadMs })
  const round = { schema, signal, ...checkGentleness(options) }
  const removed = { published: 0, dead: 0, inbox: 0 }
  const remove = async (status: 'PUBLISHED' | 'DEAD', bucket: number, keepMs: number): Promise<number> =>
    removeAlongIds(db, round, removal(schema, status), bucket, keepMs)
  for (const bucket of await bucketsOf(db, schema)) {
    if (publishedMs !== null) removed.published += await remove('PUBLISHED', bucket, publishedMs)
    if (deadMs !== null) removed.dead += await remove('DEAD', bucket, deadMs)
  }
  if (publishedMs !== null && deadMs !== null) {
    removed.inbox = await trimInbox(db, round, Math.max(publishedMs, deadMs))
  }
  return removed
}

/**
 * How long ago an event was finished decides whether it is removed. How long ago it was written only decides where the
 * round ends: nothing is finished before it is written. Rows are removed by their primary key, from an array: no
 * estimate can turn that into reading the table.
 */
function removal(schema: string, status: 'PUBLISHED' | 'DEAD'): string {
  const outbox = outboxOf(schema)
  const limit = "now() - $3::float8 * interval '1 millisecond'"
  // Dead events have an index; to find published ones, all are read.
  const among = status === 'DEAD' ? " and status = 'DEAD'" : ''
  const expired =
    status === 'DEAD'
      ? `status = 'DEAD' and not parked and dead_at < ${limit}`
      : `status = 'PUBLISHED' and published_at < ${limit}`
  return `with looked as materialized (
  select id, created_at, (${expired}) as expired
  from ${outbox}
  where bucket = $1::smallint and id > $2::bigint${among}
  order by id limit $4::int
),
locked as materialized (
  select id from ${outbox}
  where bucket = $1::smallint and id = any (array(select id from looked where expired)) and ${expired}
  for update skip locked
),
removed as (
  delete from ${outbox}
  where bucket = $1::smallint and id = any (array(select id from locked))
  returning 1
)
select (select count(*) from removed)::int as removed, max(id)::text as "lookedTo",
  coalesce(bool_or(created_at < ${limit}), false) as old
from looked`
}

async function trimInbox(db: Queryable, round: Round, keepMs: number): Promise<number> {
  const text = forgetOldSql(round.schema)
  return inBatches(round, async () => {
    const { rows } = await db.query<{ forgotten: number }>({
      text,
      values: [String(keepMs), String(round.batch)],
    })
    const done = rows[0]?.forgotten ?? 0
    return { done, more: done === round.batch }
  })
}
