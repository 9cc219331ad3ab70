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
} from '../../operations/bulk-change.ts'
import type { Database } from '../../postgres/database.ts'
import { withOperator } from '../history.ts'
import { findNamed } from './browse.ts'
import { type EventFilter, outboxOf } from './filter.ts'
import { pendingEvents } from './retry-now.ts'

export type GiveUpOptions = BulkChangeOptions<EventFilter>
export type GiveUpResult = BulkChangeResult

export const GIVE_UP: BulkChange<EventFilter> = {
  ...pendingEvents('Only PENDING events are given up.'),
  action: 'outbox.giveUp',
  // Of an ordering key only one event can be claimed at a time.
  batchSize: 1,
  guard: () => "status = 'PENDING'",
  set: ({ principal, reason }, parameter) => `status = 'CLAIMED', claimed_at = now(),
    claimed_by = ${parameter(`operator ${principal}`, 'text')}, locked_until = now(), lock_token = lock_token + 1,
    last_error = coalesce(last_error || ' ', '') || ${parameter(`(given up by ${principal}: ${reason})`, 'text')},
    history = ${withOperator({ outcome: 'givenUp', principal, reason }, parameter)}`,
  async afterBatch(tx, { schema, bucket, ids }) {
    await tx.query({
      text: `update ${outboxOf(schema)} set status = 'DEAD', dead_at = now(), claimed_at = null, claimed_by = null,
  locked_until = null
where bucket = $1::smallint and id = any ($2::bigint[]) and status = 'CLAIMED'`,
      values: [bucket, ids],
    })
    return {}
  },
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
