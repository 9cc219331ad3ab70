/**
 * Gives up deliveries that cannot be attempted: they fail without another attempt, by the clock of the database (D11).
 *
 * - A delivery that has been due for longer than the maximum age is overdue: its endpoint was disabled, its circuit open,
 *   or no dispatcher at work. What counts is how long it has been due, not how old it is: what an operator replays after a
 *   week is attempted.
 * - A delivery to an endpoint that was deleted fails, however young it is.
 *
 * Any number of processes may do this at once: each statement is short, and skips what somebody else has locked.
 */
import { bucketsOf, inBatches, type RetentionRun } from '../../operations/retention.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { BEFORE_FIRST_KEY, headsSql, PENDING, pendingEndpointsSql } from './counts.ts'
import { deliveriesOf, endpointsOf, NOT_IN_FLIGHT } from './filter.ts'

export type GivenUp = {
  /** How many have failed because they were due for too long. */
  readonly overdue: number
  /** How many have failed because their endpoint was deleted. */
  readonly endpointDeleted: number
}

/** Gives up what cannot be attempted now. A maximum age of null: nothing is ever overdue. */
export async function giveUpStuck(
  db: Database,
  run: RetentionRun,
  maxAgeMs: number | null,
): Promise<GivenUp> {
  const done = { overdue: 0, endpointDeleted: 0 }
  for (const bucket of await bucketsWithPending(db, run)) {
    for (const { overdue, endpointDeleted } of [
      await giveUpKeyed(db, run, bucket, maxAgeMs),
      await giveUpUnkeyed(db, run, bucket, maxAgeMs),
    ]) {
      done.overdue += overdue
      done.endpointDeleted += endpointDeleted
    }
  }
  return done
}

/** One statement, however many buckets there are. In the order of the indexes, so that no plan reads the whole table. */
async function bucketsWithPending(db: Queryable, run: RetentionRun): Promise<readonly number[]> {
  const anyOf = Object.values(PENDING).map(
    (part) =>
      `(select true from ${deliveriesOf(run.schema)} as d where d.bucket = b.bucket::smallint and ${part} order by d.endpoint_id limit 1)`,
  )
  return bucketsOf(db, run, { text: `where ${anyOf.join('\n  or ')}`, values: [] })
}

async function giveUpUnkeyed(
  db: Database,
  run: RetentionRun,
  bucket: number,
  maxAgeMs: number | null,
): Promise<GivenUp> {
  const done = { overdue: 0, endpointDeleted: 0 }
  for (const { endpointId, deleted } of await stuckEndpoints(db, run.schema, bucket, maxAgeMs)) {
    const due = { bucket, endpointId, maxAgeMs: deleted ? null : maxAgeMs }
    const reason = deleted ? ENDPOINT_DELETED : overdueFor(maxAgeMs)
    done[deleted ? 'endpointDeleted' : 'overdue'] += await inBatches(run, async () =>
      giveUpOfEndpoint(db, run, due, reason),
    )
  }
  return done
}

const ENDPOINT_DELETED: Reason = { code: 'endpointDeleted', error: 'its endpoint was deleted' }

function overdueFor(maxAgeMs: number | null): Reason {
  const error = `it was due for more than ${Math.round((maxAgeMs ?? 0) / 1_000)} s, and its endpoint was disabled, its circuit open, or no dispatcher at work`
  return { code: 'overdue', error }
}

interface Stuck {
  readonly endpointId: string
  readonly deleted: boolean
}

const UNKEYED = ['unkeyed', 'suspects'] as const

/** Endpoints that were deleted, or whose oldest delivery without an ordering key has been due for too long. */
async function stuckEndpoints(
  db: Queryable,
  schema: string,
  bucket: number,
  maxAgeMs: number | null,
): Promise<Stuck[]> {
  const table = deliveriesOf(schema)
  const oldest = UNKEYED.map(
    (part) => `(
    select d.next_attempt_at from ${table} as d
    where d.bucket = $1::smallint and d.endpoint_id = waiting.endpoint_id and ${PENDING[part]}
    order by d.next_attempt_at limit 1
  )`,
  )
  const { rows } = await db.query<Stuck>({
    text: `with recursive ${pendingEndpointsSql(table, UNKEYED)},
judged as (
  select waiting.endpoint_id,
    not exists (select from ${endpointsOf(schema)} as e where e.id = waiting.endpoint_id) as deleted,
    least(${oldest.join(', ')}) as oldest
  from waiting where waiting.endpoint_id is not null
)
select endpoint_id as "endpointId", deleted from judged
where deleted or oldest < now() - $2::float8 * interval '1 millisecond'`,
    values: [bucket, maxAgeMs],
  })
  return rows
}

interface Due {
  readonly bucket: number
  readonly endpointId: string
  /** Null: whenever they are due. */
  readonly maxAgeMs: number | null
}

/** Deliveries of one endpoint without an ordering key, those that have been due for the longest time first. */
async function giveUpOfEndpoint(
  db: Database,
  { schema, batch }: RetentionRun,
  { bucket, endpointId, maxAgeMs }: Due,
  reason: Reason,
): Promise<{ readonly changed: number; readonly more: boolean }> {
  const old =
    maxAgeMs === null ? '' : ` and d.next_attempt_at < now() - $4::float8 * interval '1 millisecond'`
  const picked = UNKEYED.map(
    (part) => `${part} as materialized (
  select d.id from ${deliveriesOf(schema)} as d
  where d.bucket = $1::smallint and d.endpoint_id = $2::uuid and ${PENDING[part]} and ${NOT_IN_FLIGHT}${old}
  order by d.next_attempt_at, d.id limit $3::int for update skip locked
)`,
  )
  return db.transaction(async (tx) => {
    const { rows } = await tx.query<{ id: string }>({
      text: `with ${picked.join(',\n')}
select id::text as id from unkeyed union all select id::text from suspects`,
      values: [bucket, endpointId, batch, ...(maxAgeMs === null ? [] : [maxAgeMs])],
    })
    const changed = await giveUp(tx, { schema, bucket, ids: rows.map(({ id }) => id) }, reason)
    return { changed, more: rows.length >= batch }
  })
}

interface StuckKeys {
  readonly overdue: readonly string[]
  readonly deleted: readonly string[]
  /** The last key that was walked to; null: there was none. */
  readonly endpointId: string | null
  readonly orderingKey: string | null
  readonly walked: number
}

/**
 * Deliveries with an ordering key, of keys whose head nobody has attempted for too long, as far as they are too old
 * themselves. The heads are found by walking from key to key, `batch` keys in one statement.
 */
async function giveUpKeyed(
  db: Database,
  run: RetentionRun,
  bucket: number,
  maxAgeMs: number | null,
): Promise<GivenUp> {
  const { schema, batch } = run
  const done = { overdue: 0, endpointDeleted: 0 }
  let after: { readonly endpointId: string; readonly orderingKey: string } = BEFORE_FIRST_KEY
  await inBatches(run, async () =>
    db.transaction(async (tx) => {
      const { rows } = await tx.query<StuckKeys>({
        text: stuckKeysSql(schema),
        values: [bucket, after.endpointId, after.orderingKey, batch, maxAgeMs],
      })
      const { overdue = [], deleted = [], endpointId = null, orderingKey = null, walked = 0 } = rows[0] ?? {}
      done.overdue += await giveUp(tx, { schema, bucket, ids: overdue }, overdueFor(maxAgeMs))
      done.endpointDeleted += await giveUp(tx, { schema, bucket, ids: deleted }, ENDPOINT_DELETED)
      const picked = overdue.length + deleted.length
      // The next ones of these keys may be due.
      if (picked > 0) await tx.query({ text: `select ${quoteQualified(schema, 'wake')}('webhooks')` })
      // A full batch may have ended before the last of these keys.
      if (picked >= batch) return { changed: picked, more: true }
      if (endpointId !== null && orderingKey !== null) after = { endpointId, orderingKey }
      return { changed: picked, more: walked === batch }
    }),
  )
  return done
}

function stuckKeysSql(schema: string): string {
  const table = deliveriesOf(schema)
  const isOverdue = "next_attempt_at < now() - $5::float8 * interval '1 millisecond'"
  return `with recursive ${headsSql(table, '$2::uuid, $3::text', '$4::int')},
stuck as materialized (
  select d.endpoint_id, d.ordering_key, e.id is null as deleted
  from head as d left join ${endpointsOf(schema)} as e on e.id = d.endpoint_id
  where ${NOT_IN_FLIGHT} and (e.id is null or d.${isOverdue})
),
picked as materialized (
  select row.id, stuck.deleted
  from stuck
  cross join lateral (
    select d.id from ${table} as d
    where d.bucket = $1::smallint and d.endpoint_id = stuck.endpoint_id and d.ordering_key = stuck.ordering_key
      and ${PENDING.keyed} and ${NOT_IN_FLIGHT} and (stuck.deleted or d.${isOverdue})
    order by d.id limit $4::int
    for update skip locked
  ) as row
  limit $4::int
),
last as materialized (select endpoint_id, ordering_key, step from head order by step desc limit 1)
select array(select id::text from picked where not deleted) as overdue,
  array(select id::text from picked where deleted) as deleted,
  (select endpoint_id from last) as "endpointId", (select ordering_key from last) as "orderingKey",
  coalesce((select step from last), 0) as walked`
}

/** Why deliveries are given up: a code for programs, a sentence for people. */
interface Reason {
  readonly code: 'overdue' | 'endpointDeleted'
  readonly error: string
}

/**
 * Gives up deliveries that the caller has locked and found pending and not in flight, and returns how many. No attempt is
 * added to their history. The next delivery of their ordering key becomes its head.
 */
async function giveUp(
  tx: Queryable,
  which: { readonly schema: string; readonly bucket: number; readonly ids: readonly string[] },
  { code, error }: Reason,
): Promise<number> {
  const { schema, bucket, ids } = which
  if (ids.length === 0) return 0
  const { rowCount } = await tx.query({
    text: `update ${deliveriesOf(schema)}
set delivery_status = 'failed', failed_at = now(), lease_owner = null, lease_until = null,
  last_error_code = $3::text, last_error = $4::text
where bucket = $1::smallint and id = any ($2::bigint[]) and delivery_status = 'pending' and ${NOT_IN_FLIGHT}`,
    values: [bucket, ids, code, error],
  })
  return rowCount ?? 0
}
