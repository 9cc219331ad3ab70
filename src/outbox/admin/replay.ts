/**
 * Replay: finished events are published once more (LIFE-09, LIFE-10).
 *
 * - Only PUBLISHED and DEAD events are replayed. What is PENDING or CLAIMED will be published anyway.
 * - Reset are `status`, `attempts`, `expiries`, `last_error`, `published_at`, `published_by`, `claimed_at`, `dead_at` and
 *   `parked`; `available_at` is when the event may be published. The history stays, and gets an entry. Never changed are
 *   `lock_token`, `created_at` and `event_id`: a worker that still holds an earlier lease stays fenced off, and consumers
 *   recognise the event. Where a relay has a maximum age, an event that is older gets one attempt.
 * - The events of a key are published in the order of their ids. Until a replayed event is published, later events of its
 *   key wait for it, also when a rate delays it.
 */
import {
  type BulkChange,
  type BulkChangeOptions,
  type BulkChangeResult,
  type ChangedBy,
  resumeBulkChange,
  type ResumeOptions,
  runBulkChange,
} from '../../operations/bulk-change.ts'
import { invalid } from '../../operations/request-checks.ts'
import type { Database } from '../../postgres/database.ts'
import type { PositionalParameters } from '../../postgres/parameters.ts'
import { withOperator } from '../history.ts'
import { STATUSES, type Status } from '../transitions.ts'
import { findNamed } from './browse.ts'
import { checkFilter, type EventFilter, FILTER_DATES, filterSql, narrowSql, statusesOf } from './filter.ts'

export type ReplayOptions = BulkChangeOptions<EventFilter>

/** `published` and `dead`: how many of each matched. */
export type ReplayResult = BulkChangeResult<'published' | 'dead'>

/** What a replay resets; it also sets when the event is due. */
export function resetSql({ principal, reason }: ChangedBy, parameter: PositionalParameters): string {
  return `status = 'PENDING', attempts = 0, expiries = 0, last_error = null, published_at = null,
    published_by = null, claimed_at = null, dead_at = null, parked = false,
    history = ${withOperator({ outcome: 'replayed', principal, reason }, parameter)}`
}

const REPLAYABLE: readonly Status[] = ['PUBLISHED', 'DEAD']

export const REPLAY: BulkChange<EventFilter, 'published' | 'dead'> = {
  action: 'outbox.replay',
  row: 'event',
  rows: 'events',
  table: 'outbox',
  bucketed: true,
  checkFilter(filter) {
    checkFilter(filter)
    const other = filter.status === undefined ? undefined : statusesOf(filter).find(isUnfinished)
    if (other === undefined) return
    throw invalid('status', other, 'Only PUBLISHED and DEAD events are replayed; the others are unfinished.')
  },
  dates: FILTER_DATES,
  scans: (filter) => {
    const statuses = filter.status === undefined ? REPLAYABLE : statusesOf(filter)
    const isDeadOnly = statuses.every((status) => status === 'DEAD')
    return [
      {
        // Dead events have an index. Otherwise every row counts, whatever its status, because only then is the scan bounded.
        narrow: (given, parameter) => narrowSql(given, isDeadOnly ? statuses : STATUSES, parameter),
        where: (given, parameter) => filterSql(given, statuses, parameter),
        finishedAt: 'coalesce(published_at, dead_at)',
      },
    ]
  },
  guard: () => "status in ('PUBLISHED', 'DEAD')",
  counts: () => ({
    published: "count(*) filter (where status = 'PUBLISHED')",
    dead: "count(*) filter (where status = 'DEAD')",
  }),
  set: resetSql,
  dueColumn: 'available_at',
  wakes: ['outbox'],
  findNamed: async (db, schema, { ids }) =>
    findNamed(db, schema, ids, ({ status }) => {
      if (!isUnfinished(status)) return undefined
      const sooner = status === 'PENDING' ? '; `leasehold outbox retry` publishes it now' : ''
      return `it is ${status}, and will be published anyway${sooner}`
    }),
}

/** Replays events by their ids or by a filter. */
export async function replay(db: Database, options: ReplayOptions): Promise<ReplayResult> {
  return runBulkChange(db, REPLAY, options)
}

/** Continues a replay that was stopped or killed: the same events at the same rate, for the same reason. */
export async function resumeReplay(
  db: Database,
  changeId: string,
  options: ResumeOptions,
): Promise<ReplayResult> {
  return resumeBulkChange(db, REPLAY, changeId, options)
}

function isUnfinished(status: Status): boolean {
  return !REPLAYABLE.includes(status)
}
