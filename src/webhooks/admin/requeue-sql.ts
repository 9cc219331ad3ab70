/** The statements of a requeue. */
import { type Values, values } from '../../admin/statement-values.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { deliveriesOf, endpointsOf } from './tables.ts'
import {
  nextCursor,
  type Chosen,
  SCANNED,
  type Scanned,
  scannedSql,
  matchedSql,
  orderSql,
  type Cursor,
} from './walk.ts'

export interface CountedMatches {
  /** With an endpoint to go to. */
  readonly matched: number
  /** Of these, how many wait until their endpoint is enabled. */
  readonly endpointDisabled: number
  /** Besides these, how many whose endpoint has been deleted: they stay as they are. */
  readonly endpointGone: number
}

/** Counts what the next scan matches, and changes nothing. */
export async function countMatches(
  db: Queryable,
  chosen: Chosen,
  cursor: Cursor,
): Promise<{ readonly counted: CountedMatches; readonly next: Cursor | undefined }> {
  const value = values()
  const { rows } = await db.query<CountedMatches & Scanned>({
    text: `with ${scannedSql(chosen, cursor, value)},
matched as materialized (
  select endpoint_id, count(*) as count from ${deliveriesOf(chosen.schema)} as d
  where ${matchedSql(chosen, cursor, value)} group by endpoint_id
)
select ${SCANNED},
  coalesce(sum(count) filter (where e.id is not null), 0)::int as matched,
  coalesce(sum(count) filter (where not e.enabled), 0)::int as "endpointDisabled",
  coalesce(sum(count) filter (where e.id is null), 0)::int as "endpointGone"
from matched left join ${endpointsOf(chosen.schema)} as e on e.id = matched.endpoint_id`,
    values: value.all,
  })
  const [row] = rows
  if (row === undefined) return { counted: NONE, next: undefined }
  const { matched, endpointDisabled, endpointGone } = row
  return { counted: { matched, endpointDisabled, endpointGone }, next: nextCursor(row) }
}

export const NONE: CountedMatches = { matched: 0, endpointDisabled: 0, endpointGone: 0 }

export interface Pace {
  /** Deliveries per second; undefined: all at once. */
  readonly rate: number | undefined
  /** The first moment that is still free, in seconds since 1970. */
  readonly nextDue: number
}

export interface RequeueBatch {
  readonly requeued: number
  readonly firstId: string | null
  readonly lastId: string | null
  /** When the last of them is due, in seconds since 1970. */
  readonly lastDue: number | null
  readonly next: Cursor | undefined
}

/**
 * Brings the first deliveries of the scan back to `pending`. Reset are the state, the attempts, the expiries and the last
 * error; the history of attempts stays. `lease_token`, `event_id` and `created_at` are never changed: a process that still
 * holds an earlier token stays fenced off, and receivers recognise the event.
 *
 * Not SKIP LOCKED: whoever has locked one of the rows is another operator, or retention, and waiting tells whether the row
 * still exists to be requeued, where skipping would leave it out. All of them lock in the same order.
 *
 * With a rate each delivery gets a moment of its own, not before that of its predecessor in any earlier batch and not
 * before the present: a requeue that was delayed does not catch up in a burst.
 */
export async function requeueBatch(
  tx: Queryable,
  chosen: Chosen,
  cursor: Cursor,
  pace: Pace,
  limit: number,
): Promise<RequeueBatch> {
  const value = values()
  const table = deliveriesOf(chosen.schema)
  const { rows } = await tx.query<Omit<RequeueBatch, 'next'> & Scanned & LastPicked>({
    text: `with ${scannedSql(chosen, cursor, value)},
picked as materialized (
  select d.id, d.failed_at from ${table} as d
  where ${matchedSql(chosen, cursor, value)}
    and exists (select from ${endpointsOf(chosen.schema)} as e where e.id = d.endpoint_id)
  order by ${orderSql(chosen.status)} limit ${value(limit, 'int')} for update of d
),
numbered as materialized (
  select id, row_number() over (order by failed_at, id) - 1 as n from picked
),
requeued as (
  update ${table} as d
  set delivery_status = 'pending', attempts = 0, expiries = 0, delivered_at = null, failed_at = null,
    last_error_code = null, last_error = null, next_attempt_at = ${dueSql(pace, value)}
  from numbered
  where d.bucket = ${value(chosen.bucket, 'smallint')} and d.id = numbered.id
    and d.id = any (array(select id from picked))
  returning d.id, d.next_attempt_at
)
select ${SCANNED}, count(*)::int as requeued, min(requeued.id)::text as "firstId", max(requeued.id)::text as "lastId",
  extract(epoch from max(next_attempt_at))::float8 as "lastDue",
  (select max(failed_at)::text from picked) as "pickedAt",
  (select p.id::text from picked as p order by p.failed_at desc nulls last, p.id desc limit 1) as "pickedId"
from requeued`,
    values: value.all,
  })
  const [row] = rows
  if (row === undefined) return { requeued: 0, firstId: null, lastId: null, lastDue: null, next: undefined }
  const { requeued, firstId, lastId, lastDue, pickedAt, pickedId } = row
  // A full batch ends before the scan does.
  const next =
    requeued === limit && pickedId !== null ? { at: pickedAt ?? cursor.at, id: pickedId } : nextCursor(row)
  return { requeued, firstId, lastId, lastDue, next }
}

/** Where the batch ended. */
interface LastPicked {
  readonly pickedAt: string | null
  readonly pickedId: string | null
}

function dueSql({ rate, nextDue }: Pace, value: Values): string {
  if (rate === undefined) return 'now()'
  return `greatest(now(), to_timestamp(${value(nextDue, 'float8')})) + make_interval(secs => n / ${value(rate, 'float8')})`
}
