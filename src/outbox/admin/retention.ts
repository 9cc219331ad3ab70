/**
 * Deletes events that were finished long enough ago (docs/decisions/008-retention.md).
 *
 * - PUBLISHED events are retained for a time after their publication, DEAD ones for a time after they died. What is
 *   PENDING or CLAIMED is never touched, and neither is a parked event: deleting it would unblock its key without an
 *   operator's decision.
 * - The inbox of consumers is retained for as long as an event could still be replayed.
 * - Published events are found along the primary key, dead ones along their own index.
 */
import {
  type BatchPacing,
  DAY_MS,
  deleteAlongIds,
  inBatches,
  type RetentionCall,
  retentionCursor,
  type RetentionRun,
  startRetention,
} from '../../operations/retention.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { forgetOldSql } from '../inbox.ts'
import { outboxOf } from './filter.ts'

/** How long events are retained, and in which batches they are deleted. */
export interface Retention extends BatchPacing {
  /** How long an event is retained after it was published. Null: for ever. Default 7 days. */
  readonly publishedMs?: number | null | undefined
  /** How long an event is retained after it died. Null: for ever. Default 90 days. */
  readonly deadMs?: number | null | undefined
}

export interface RetentionOptions extends Retention, RetentionCall {}

/** How many rows were deleted. */
export type Removed = {
  readonly published: number
  readonly dead: number
  /** Entries of the consumers' inbox. */
  readonly inbox: number
}

/** Deletes what is old enough now. */
export async function applyRetention(db: Queryable, options: RetentionOptions = {}): Promise<Removed> {
  return repeatedRetention(options)(db, options.signal)
}

/** The retention of a process, which calls it again and again: a call goes on where the last one ended. */
export function repeatedRetention(
  options: Omit<RetentionOptions, 'signal'>,
): (db: Queryable, signal?: AbortSignal) => Promise<Removed> {
  const { publishedMs = 7 * DAY_MS, deadMs = 90 * DAY_MS } = options
  const cursors = { published: retentionCursor(), dead: retentionCursor() }
  return async (db, signal) => {
    const run = startRetention({ ...options, signal }, { publishedMs, deadMs })
    const table = outboxOf(run.schema)
    const published = { table, finished: "status = 'PUBLISHED'", finishedAt: 'published_at' }
    const dead = {
      table,
      finished: "status = 'DEAD' and not parked",
      finishedAt: 'dead_at',
      among: "status = 'DEAD'",
    }
    return {
      published:
        publishedMs === null ? 0 : await deleteAlongIds(db, run, published, publishedMs, cursors.published),
      dead: deadMs === null ? 0 : await deleteAlongIds(db, run, dead, deadMs, cursors.dead),
      inbox:
        publishedMs === null || deadMs === null ? 0 : await trimInbox(db, run, Math.max(publishedMs, deadMs)),
    }
  }
}

async function trimInbox(db: Queryable, run: RetentionRun, keepMs: number): Promise<number> {
  const text = forgetOldSql(run.schema)
  return inBatches(run, async () => {
    const { rows } = await db.query<{ forgotten: number }>({
      text,
      values: [String(keepMs), String(run.batch)],
    })
    const changed = rows[0]?.forgotten ?? 0
    return { changed, more: changed === run.batch }
  })
}
