/**
 * Give up: pending events become dead by the operator's decision (LIFE-08), and the keys that they hold up go on.
 *
 * - Chosen by a filter: events at which an attempt has failed. Any other pending event is given up only if it is named by
 *   its id.
 * - There is no transition from PENDING to DEAD: the operator claims the event, as a relay would, and gives it up in the same
 *   transaction. Its token grows, so that whoever held it before stays fenced off.
 * - What is in flight is left alone. A replay brings back what was given up.
 */
import {
  type BulkChange,
  type BulkChangeOptions,
  type BulkChangeResult,
  resumeBulkChange,
  type ResumeOptions,
  runBulkChange,
} from '../../admin/bulk-change.ts'
import { invalid } from '../../admin/request-checks.ts'
import type { Database } from '../../postgres/database.ts'
import { STATUSES } from '../transitions.ts'
import { findNamed } from './browse.ts'
import {
  checkFilter,
  type EventFilter,
  FILTER_DATES,
  filterSql,
  narrowSql,
  outboxOf,
  statusesOf,
} from './filter.ts'

export type GiveUpOptions = BulkChangeOptions<EventFilter>
export type GiveUpResult = BulkChangeResult

export const GIVE_UP: BulkChange<EventFilter> = {
  action: 'outbox.giveUp',
  row: 'event',
  rows: 'events',
  table: 'outbox',
  bucketed: true,
  // Of an ordering key only one event can be claimed at a time.
  batchSize: 1,
  checkFilter(filter) {
    checkFilter(filter)
    const other =
      filter.status === undefined ? undefined : statusesOf(filter).find((status) => status !== 'PENDING')
    if (other !== undefined) throw invalid('status', other, 'Only PENDING events are given up.')
  },
  dates: FILTER_DATES,
  scans: () => [
    {
      // Every row counts, whatever its status, because only then is the scan bounded.
      narrow: (filter, parameter) => narrowSql(filter, STATUSES, parameter),
      where: (filter, parameter) =>
        `${filterSql(filter, ['PENDING'], parameter)}${filter.ids === undefined ? ' and attempts > 0' : ''}`,
    },
  ],
  guard: () => "status = 'PENDING'",
  counts: () => ({}),
  set: ({ principal, reason }, parameter) => `status = 'CLAIMED', claimed_at = now(),
    claimed_by = ${parameter(`operator ${principal}`, 'text')}, locked_until = now(), lock_token = lock_token + 1,
    last_error = coalesce(last_error || ' ', '') || ${parameter(`(given up by ${principal}: ${reason})`, 'text')}`,
  async afterBatch(tx, { schema, bucket, ids }) {
    await tx.query({
      text: `update ${outboxOf(schema)} set status = 'DEAD', dead_at = now(), claimed_at = null, claimed_by = null,
  locked_until = null
where bucket = $1::smallint and id = any ($2::bigint[]) and status = 'CLAIMED'`,
      values: [bucket, ids],
    })
    return {}
  },
  wakes: ['outbox'],
  findNamed: async (db, schema, { ids }) =>
    findNamed(db, schema, ids, ({ status, claimedBy }) => {
      if (status === 'CLAIMED') return `it is in flight: ${claimedBy} publishes it at this moment`
      return status === 'PENDING' ? undefined : `it is ${status} already`
    }),
}

/** Gives up pending events by their ids or by a filter. */
export async function giveUp(db: Database, options: GiveUpOptions): Promise<GiveUpResult> {
  return runBulkChange(db, GIVE_UP, options)
}

/** Continues a `giveUp` that was stopped or killed. */
export async function resumeGiveUp(
  db: Database,
  changeId: string,
  options: ResumeOptions,
): Promise<GiveUpResult> {
  return resumeBulkChange(db, GIVE_UP, changeId, options)
}
