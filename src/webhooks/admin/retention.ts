/**
 * Retention of deliveries, by the clock of the database (D11):
 *
 * - Deliveries are deleted some time after they were delivered or have failed.
 * - A delivery that has been due for longer than the maximum age without an attempt has failed: its endpoint was disabled,
 *   its circuit open, or no dispatcher at work. What counts is how long it has been due, not how old it is: what an operator
 *   replays after a week is attempted.
 * - Deliveries to an endpoint that was deleted have failed.
 * - The secret before a rotation is removed when its window is over.
 *
 * Any number of processes may do this at once: each statement is short, and skips what somebody else has locked.
 */
import {
  type BatchPacing,
  deleteAlongFinishTime,
  deleteAlongIds,
  inBatches,
  type RetentionRun,
  startRetention,
} from '../../admin/retention.ts'
import { bucketsIn } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { BEFORE_FIRST_KEY, headsSql, PENDING, pendingEndpointsSql } from './counts.ts'
import { deliveriesOf, endpointsOf, NOT_IN_FLIGHT } from './filter.ts'

/** How long finished deliveries are retained, and in which batches they are deleted. */
export interface WebhookRetention extends BatchPacing {
  /** How long a delivery is retained after it was delivered. Null: for ever. Default 7 days. */
  readonly deliveredMs?: number | null | undefined
  /** How long a delivery is retained after it has failed. Null: for ever. Default 90 days. */
  readonly failedMs?: number | null | undefined
  /** How long one may be due before it has failed. Null: for ever. Default 4 days. */
  readonly maxAgeMs?: number | null | undefined
}

export interface WebhookRetentionOptions extends WebhookRetention {
  readonly schema?: string | undefined
  /** Ends the run after the batch that is being written. */
  readonly signal?: AbortSignal | undefined
}

export type WebhookRetentionResult = {
  /** How many delivered ones were deleted. */
  readonly delivered: number
  /** How many failed ones were deleted. */
  readonly failed: number
  /** How many have failed because they were due for too long. */
  readonly expired: number
  /** How many have failed because their endpoint was deleted. */
  readonly endpointDeleted: number
  /** How many former secrets were removed. */
  readonly secrets: number
}

const DAY_MS = 86_400_000

/** Deletes, and fails, what is old enough now. */
export async function applyRetention(
  db: Database,
  options: WebhookRetentionOptions = {},
): Promise<WebhookRetentionResult> {
  const { deliveredMs = 7 * DAY_MS, failedMs = 90 * DAY_MS, maxAgeMs = 4 * DAY_MS } = options
  const run = startRetention(options, { deliveredMs, failedMs, maxAgeMs }, options.signal)
  const table = deliveriesOf(run.schema)
  const delivered = { table, finished: "delivery_status = 'delivered'", finishedAt: 'delivered_at' }
  const failed = { table, finished: "delivery_status = 'failed'", finishedAt: 'failed_at' }
  const done = { delivered: 0, failed: 0, expired: 0, endpointDeleted: 0, secrets: 0 }
  done.secrets = await forgetSecrets(db, run)
  for (const bucket of await bucketsIn(db, table)) {
    const { expired, endpointDeleted } = await giveUpIn(db, run, bucket, maxAgeMs)
    done.expired += expired
    done.endpointDeleted += endpointDeleted
    if (deliveredMs !== null) done.delivered += await deleteAlongIds(db, run, delivered, bucket, deliveredMs)
    if (failedMs !== null) done.failed += await deleteAlongFinishTime(db, run, failed, bucket, failedMs)
  }
  return done
}

interface GivenUp {
  readonly expired: number
  readonly endpointDeleted: number
}

async function giveUpIn(
  db: Database,
  run: RetentionRun,
  bucket: number,
  maxAgeMs: number | null,
): Promise<GivenUp> {
  const done = await giveUpKeyed(db, run, bucket, maxAgeMs)
  for (const { endpointId, deleted } of await stuckEndpoints(db, run.schema, bucket, maxAgeMs)) {
    const due = { bucket, endpointId, maxAgeMs: deleted ? null : maxAgeMs }
    const reason = deleted ? ENDPOINT_DELETED : expiredAfter(maxAgeMs)
    done[deleted ? 'endpointDeleted' : 'expired'] += await inBatches(run, async () =>
      giveUpUnkeyed(db, run, due, reason),
    )
  }
  return done
}

const ENDPOINT_DELETED: Reason = { code: 'endpointDeleted', error: 'its endpoint was deleted' }

function expiredAfter(maxAgeMs: number | null): Reason {
  const error = `it was due for more than ${Math.round((maxAgeMs ?? 0) / 1_000)} s, and its endpoint was disabled, its circuit open, or no dispatcher at work`
  return { code: 'expired', error }
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
async function giveUpUnkeyed(
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
  readonly expired: readonly string[]
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
): Promise<{ expired: number; endpointDeleted: number }> {
  const { schema, batch } = run
  const done = { expired: 0, endpointDeleted: 0 }
  let after: { readonly endpointId: string; readonly orderingKey: string } = BEFORE_FIRST_KEY
  await inBatches(run, async () =>
    db.transaction(async (tx) => {
      const { rows } = await tx.query<StuckKeys>({
        text: stuckKeysSql(schema),
        values: [bucket, after.endpointId, after.orderingKey, batch, maxAgeMs],
      })
      const { expired = [], deleted = [], endpointId = null, orderingKey = null, walked = 0 } = rows[0] ?? {}
      done.expired += await giveUp(tx, { schema, bucket, ids: expired }, expiredAfter(maxAgeMs))
      done.endpointDeleted += await giveUp(tx, { schema, bucket, ids: deleted }, ENDPOINT_DELETED)
      const picked = expired.length + deleted.length
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
  const tooOld = "next_attempt_at < now() - $5::float8 * interval '1 millisecond'"
  return `with recursive ${headsSql(table, '$2::uuid, $3::text', '$4::int')},
stuck as materialized (
  select d.endpoint_id, d.ordering_key, e.id is null as deleted
  from head as d left join ${endpointsOf(schema)} as e on e.id = d.endpoint_id
  where ${NOT_IN_FLIGHT} and (e.id is null or d.${tooOld})
),
picked as materialized (
  select row.id, stuck.deleted
  from stuck
  cross join lateral (
    select d.id from ${table} as d
    where d.bucket = $1::smallint and d.endpoint_id = stuck.endpoint_id and d.ordering_key = stuck.ordering_key
      and ${PENDING.keyed} and ${NOT_IN_FLIGHT} and (stuck.deleted or d.${tooOld})
    order by d.id limit $4::int
    for update skip locked
  ) as row
  limit $4::int
),
last as materialized (select endpoint_id, ordering_key, step from head order by step desc limit 1)
select array(select id::text from picked where not deleted) as expired,
  array(select id::text from picked where deleted) as deleted,
  (select endpoint_id from last) as "endpointId", (select ordering_key from last) as "orderingKey",
  coalesce((select step from last), 0) as walked`
}

/** Asks first: an UPDATE wakes every dispatcher, also when it changes nothing. */
async function forgetSecrets(db: Queryable, { schema, batch }: RetentionRun): Promise<number> {
  const table = endpointsOf(schema)
  const { rows } = await db.query<{ id: string }>({
    text: `select id from ${table} where previous_secret_until <= now() limit $1::int`,
    values: [batch],
  })
  if (rows.length === 0) return 0
  const { rowCount } = await db.query({
    text: `with locked as materialized (
  select id from ${table} where id = any ($1::uuid[]) and previous_secret_until <= now() for update skip locked
)
update ${table} set previous_secret = null, previous_secret_until = null
where id = any (array(select id from locked))`,
    values: [rows.map(({ id }) => id)],
  })
  return rowCount ?? 0
}

/** Why deliveries are given up: a code for programs, a sentence for people. */
interface Reason {
  readonly code: 'expired' | 'endpointDeleted'
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
