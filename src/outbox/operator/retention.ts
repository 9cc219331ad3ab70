/**
 * Removes what is finished and old enough, a little at a time (docs/decisions/008-retention.md).
 *
 * - PUBLISHED events are kept for a time after their publication, DEAD ones for a time after they were written (when
 *   they died is not known). What is PENDING or CLAIMED is never touched, and neither is a parked event: removing it
 *   would let its key go on without anybody having decided that.
 * - What consumers remember in the inbox is kept for as long as an event could still be replayed.
 * - A round goes along the primary key, and for dead events along their own index, from the oldest on; it keeps its
 *   place and ends where the events are too young. Ids are nearly in the order of time: what a round steps over (a row
 *   that somebody had locked, a replayed one) the next one finds.
 * - Each batch is one short statement that locks nothing for others to wait on.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { type Queryable } from '../../postgres/queryable.ts'
import { bucketsOf, outboxOf } from './browse-buckets.ts'
import { invalid } from './browse-filter.ts'

/** How long events are kept, and how gently they are removed. */
export interface Retention {
  /** How long a published event is kept. Null: for ever. Default 7 days. */
  readonly publishedMs?: number | null | undefined
  /** How long a dead event is kept. Null: for ever. Default 90 days. */
  readonly deadMs?: number | null | undefined
  /** The most rows one statement looks at, and removes. Default 1,000. */
  readonly batch?: number | undefined
  /** How long to rest after a batch of which something was removed. Default 20. */
  readonly pauseMs?: number | undefined
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
const LARGEST_BATCH = 10_000

/** One round. */
export async function applyRetention(db: Queryable, options: RetentionOptions = {}): Promise<Removed> {
  const { schema = 'leasehold', signal } = options
  const { publishedMs, deadMs, batch, pauseMs } = checked(options)
  const round = { db, schema, batch, pauseMs, signal }
  const removed = { published: 0, dead: 0, inbox: 0 }
  for (const bucket of await bucketsOf(db, schema)) {
    if (publishedMs !== null) removed.published += await removeEvents(round, 'PUBLISHED', bucket, publishedMs)
    if (deadMs !== null) removed.dead += await removeEvents(round, 'DEAD', bucket, deadMs)
  }
  if (publishedMs !== null && deadMs !== null) {
    removed.inbox = await trimInbox(round, Math.max(publishedMs, deadMs))
  }
  return removed
}

interface Round {
  readonly db: Queryable
  readonly schema: string
  readonly batch: number
  readonly pauseMs: number
  readonly signal: AbortSignal | undefined
}

interface Looked {
  readonly removed: number
  /** Null: there was nothing left to look at. */
  readonly lookedTo: string | null
  /** Whether any of them was written long enough ago. */
  readonly old: boolean
}

async function removeEvents(
  round: Round,
  status: 'PUBLISHED' | 'DEAD',
  bucket: number,
  keepMs: number,
): Promise<number> {
  const text = removal(round.schema, status)
  let removed = 0
  let place = '-9223372036854775808'
  while (round.signal?.aborted !== true) {
    const values = [bucket, place, keepMs, round.batch]
    const { rows } = await round.db.query<Looked>({ text, values })
    const [looked] = rows
    if (looked === undefined) break
    removed += looked.removed
    if (looked.lookedTo === null || !looked.old) break
    place = looked.lookedTo
    await rest(round)
  }
  return removed
}

/**
 * An event is published after it was written, so where all were written too recently nothing can be removed, and behind
 * them even less. Rows are removed by their primary key, from an array: no estimate can turn that into reading the table.
 */
function removal(schema: string, status: 'PUBLISHED' | 'DEAD'): string {
  const outbox = outboxOf(schema)
  const limit = "now() - $3::float8 * interval '1 millisecond'"
  // The dead have an index; to find the published, all are looked at.
  const among = status === 'DEAD' ? " and indexed_status = 'DEAD'" : ''
  const expired =
    status === 'DEAD'
      ? `not parked and created_at < ${limit}`
      : `status = 'PUBLISHED' and published_at < ${limit}`
  return `with looked as materialized (
  select id, created_at, (${expired}) as expired
  from ${outbox}
  where bucket = $1::smallint and id > $2::bigint${among}
  order by id limit $4::int
),
locked as materialized (
  select id from ${outbox}
  where bucket = $1::smallint and id = any (array(select id from looked where expired))
    and status = '${status}' and ${expired}
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

async function trimInbox(round: Round, keepMs: number): Promise<number> {
  const inbox = quoteQualified(round.schema, 'inbox')
  // By where the rows are: they are locked and cannot move. A join would be planned as a read of the whole table.
  const text = `with chosen as materialized (
  select ctid from ${inbox}
  where processed_at < now() - $1::float8 * interval '1 millisecond'
  order by processed_at limit $2::int
  for update skip locked
)
delete from ${inbox} where ctid = any (array(select ctid from chosen))`
  let removed = 0
  while (round.signal?.aborted !== true) {
    const { rowCount } = await round.db.query({ text, values: [keepMs, round.batch] })
    removed += rowCount ?? 0
    if ((rowCount ?? 0) < round.batch) break
    await rest(round)
  }
  return removed
}

async function rest({ pauseMs, signal }: Round): Promise<void> {
  if (pauseMs === 0) return
  // Being told to stop ends the rest; the loop sees the signal itself.
  await delay(pauseMs, undefined, signal === undefined ? {} : { signal }).catch(() => undefined)
}

function checked(options: RetentionOptions): {
  readonly publishedMs: number | null
  readonly deadMs: number | null
  readonly batch: number
  readonly pauseMs: number
} {
  const { publishedMs = 7 * DAY_MS, deadMs = 90 * DAY_MS, batch = 1_000, pauseMs = 20 } = options
  for (const [name, value] of Object.entries({ publishedMs, deadMs })) {
    if (value !== null && !isDuration(value)) {
      throw invalid(name, value, 'Give a number of milliseconds, 0 or more, or null to keep them for ever.')
    }
  }
  if (!isDuration(pauseMs)) throw invalid('pauseMs', pauseMs, 'Give a number of milliseconds, 0 or more.')
  if (!Number.isInteger(batch) || batch < 1 || batch > LARGEST_BATCH) {
    throw invalid('batch', batch, `Give a whole number from 1 to ${LARGEST_BATCH}.`)
  }
  return { publishedMs, deadMs, batch, pauseMs }
}

function isDuration(ms: number): boolean {
  return ms >= 0 && Number.isFinite(ms)
}
