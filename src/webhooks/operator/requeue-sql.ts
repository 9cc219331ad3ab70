/** The statements of a requeue. */
import { type Values, values } from '../../operator/statement-values.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { deliveriesOf, endpointsOf } from './tables.ts'
import {
  afterLook,
  type Chosen,
  LOOKED,
  type Looked,
  lookedSql,
  meantSql,
  orderSql,
  type Place,
} from './walk.ts'

export interface CountedMatches {
  /** With an endpoint to go to. */
  readonly matched: number
  /** Of these, how many wait until their endpoint is enabled again. */
  readonly endpointDisabled: number
  /** Besides these, how many whose endpoint has been deleted: they stay as they are. */
  readonly endpointGone: number
}

/** Counts what is meant in the next stretch, and changes nothing. */
export async function countMatches(
  db: Queryable,
  chosen: Chosen,
  place: Place,
): Promise<{ readonly counted: CountedMatches; readonly next: Place | undefined }> {
  const value = values()
  const { rows } = await db.query<CountedMatches & Looked>({
    text: `with ${lookedSql(chosen, place, value)},
meant as materialized (
  select endpoint_id, count(*) as count from ${deliveriesOf(chosen.schema)} as d
  where ${meantSql(chosen, place, value)} group by endpoint_id
)
select ${LOOKED},
  coalesce(sum(count) filter (where e.id is not null), 0)::int as matched,
  coalesce(sum(count) filter (where not e.enabled), 0)::int as "endpointDisabled",
  coalesce(sum(count) filter (where e.id is null), 0)::int as "endpointGone"
from meant left join ${endpointsOf(chosen.schema)} as e on e.id = meant.endpoint_id`,
    values: value.all,
  })
  const [row] = rows
  if (row === undefined) return { counted: NONE, next: undefined }
  const { matched, endpointDisabled, endpointGone } = row
  return { counted: { matched, endpointDisabled, endpointGone }, next: afterLook(row) }
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
  readonly next: Place | undefined
}

/**
 * Brings the first deliveries of the stretch back to `pending`. Reset are the state, the attempts and the last error;
 * each attempt stays in `webhook_attempts`. `lease_token`, `event_id` and `created_at` are never touched: a zombie that
 * still holds a token of the delivery's former life stays fenced off, and receivers recognise the event.
 *
 * Not SKIP LOCKED: whoever holds one of the rows is another operator, or retention, and waiting for it tells whether the
 * row is still there to be requeued, where skipping would leave it out. All of them lock in the same order.
 *
 * With a rate each delivery gets a moment of its own, not before the one of its predecessor in any earlier batch and not
 * before the present: a requeue that was held up does not catch up in a burst.
 */
export async function requeueBatch(
  tx: Queryable,
  chosen: Chosen,
  place: Place,
  pace: Pace,
  limit: number,
): Promise<RequeueBatch> {
  const value = values()
  const table = deliveriesOf(chosen.schema)
  const { rows } = await tx.query<Omit<RequeueBatch, 'next'> & Looked & LastPicked>({
    text: `with ${lookedSql(chosen, place, value)},
picked as materialized (
  select d.id, d.failed_at from ${table} as d
  where ${meantSql(chosen, place, value)}
    and exists (select from ${endpointsOf(chosen.schema)} as e where e.id = d.endpoint_id)
  order by ${orderSql(chosen.status)} limit ${value(limit, 'int')} for update of d
),
numbered as materialized (
  select id, row_number() over (order by failed_at, id) - 1 as n from picked
),
requeued as (
  update ${table} as d
  set delivery_status = 'pending', attempts = 0, delivered_at = null, failed_at = null, behind = false,
    last_error_code = null, last_error = null, next_attempt_at = ${dueSql(pace, value)}
  from numbered
  where d.bucket = ${value(chosen.bucket, 'smallint')} and d.id = numbered.id
    and d.id = any (array(select id from picked))
  returning d.id, d.next_attempt_at
)
select ${LOOKED}, count(*)::int as requeued, min(requeued.id)::text as "firstId", max(requeued.id)::text as "lastId",
  extract(epoch from max(next_attempt_at))::float8 as "lastDue",
  (select max(failed_at)::text from picked) as "pickedAt",
  (select p.id::text from picked as p order by p.failed_at desc nulls last, p.id desc limit 1) as "pickedId"
from requeued`,
    values: value.all,
  })
  const [row] = rows
  if (row === undefined) return { requeued: 0, firstId: null, lastId: null, lastDue: null, next: undefined }
  const { requeued, firstId, lastId, lastDue, pickedAt, pickedId } = row
  // A full batch ends before the stretch does.
  const next =
    requeued === limit && pickedId !== null ? { at: pickedAt ?? place.at, id: pickedId } : afterLook(row)
  return { requeued, firstId, lastId, lastDue, next }
}

/** Where on its way the batch ended. */
interface LastPicked {
  readonly pickedAt: string | null
  readonly pickedId: string | null
}

function dueSql({ rate, nextDue }: Pace, value: Values): string {
  if (rate === undefined) return 'now()'
  return `greatest(now(), to_timestamp(${value(nextDue, 'float8')})) + make_interval(secs => n / ${value(rate, 'float8')})`
}
