/**
 * What the webhooks need now and then, a little at a time:
 *
 * - What was delivered or has failed is removed when it is old enough, and its attempts with it.
 * - What has been due for longer than the maximum age, without anybody attempting it, has failed: its endpoint was
 *   disabled, or its circuit open, all the while. It is its being due that counts, not its age: what an operator
 *   requeues after a week is attempted.
 * - Deliveries to an endpoint that was deleted have failed.
 * - The secret before a rotation is forgotten when its window is over.
 *
 * Any number may run at once: each statement is short, and steps over what somebody else has locked.
 */
import type { LeaseStore } from '../../lease/store.ts'
import {
  checkGentleness,
  checkKept,
  type Gentleness,
  inBatches,
  removeAlongIds,
  type Round,
} from '../../operator/rounds.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { pendingEndpointsSql } from './counts.ts'
import { giveUp, NOT_IN_FLIGHT, openLines, type Reason } from './give-up.ts'
import { removeDelivered, removeFailed } from './retention-sql.ts'
import { bucketsOf, deliveriesOf, endpointsOf } from './tables.ts'

/** How long deliveries are kept, and how gently they are removed. */
export interface WebhookRetention extends Gentleness {
  /** How long a delivered one is kept. Null: for ever. Default 7 days. */
  readonly deliveredMs?: number | null | undefined
  /** How long a failed one is kept. Null: for ever. Default 90 days. */
  readonly failedMs?: number | null | undefined
  /** How long one may be due before it has failed. Null: for ever. Default 4 days. */
  readonly maxAgeMs?: number | null | undefined
}

export interface WebhookUpkeepOptions extends WebhookRetention {
  readonly schema?: string | undefined
}

export type WebhookUpkeepDone = {
  /** How many delivered ones were removed. */
  readonly delivered: number
  /** How many failed ones were removed. */
  readonly failed: number
  /** How many have failed because they were due for too long. */
  readonly expired: number
  /** How many have failed because their endpoint is no more. */
  readonly endpointDeleted: number
  /** How many former secrets were forgotten. */
  readonly secrets: number
}

const DAY_MS = 86_400_000

/** One round. */
export async function webhookUpkeep(
  db: Database,
  options: WebhookUpkeepOptions = {},
  signal?: AbortSignal,
): Promise<WebhookUpkeepDone> {
  const {
    schema = 'leasehold',
    deliveredMs = 7 * DAY_MS,
    failedMs = 90 * DAY_MS,
    maxAgeMs = 4 * DAY_MS,
  } = options
  checkKept({ deliveredMs, failedMs, maxAgeMs })
  const round: Round = { schema, signal, ...checkGentleness(options) }
  const done = { delivered: 0, failed: 0, expired: 0, endpointDeleted: 0, secrets: 0 }
  done.secrets = await forgetSecrets(db, round)
  for (const bucket of await bucketsOf(db, schema)) {
    const { expired, endpointDeleted } = await giveUpIn(db, round, bucket, maxAgeMs)
    done.expired += expired
    done.endpointDeleted += endpointDeleted
    if (deliveredMs !== null) {
      done.delivered += await removeAlongIds(db, round, removeDelivered(schema), bucket, deliveredMs)
    }
    if (failedMs !== null) {
      done.failed += await inBatches(round, async () => {
        const values = [bucket, failedMs, round.batch]
        const removed = (await db.query({ text: removeFailed(schema), values })).rowCount ?? 0
        return { done: removed, more: removed === round.batch }
      })
    }
  }
  return done
}

async function giveUpIn(
  db: Database,
  round: Round,
  bucket: number,
  maxAgeMs: number | null,
): Promise<{ readonly expired: number; readonly endpointDeleted: number }> {
  const done = { expired: 0, endpointDeleted: 0 }
  const stuck = await stuckEndpoints(db, round.schema, bucket, maxAgeMs)
  if (stuck.length === 0) return done
  const lines = await openLines(db, round.schema, bucket)
  for (const { endpointId, gone } of stuck) {
    const due = { bucket, endpointId, maxAgeMs: gone ? null : maxAgeMs }
    const reason = gone ? ENDPOINT_DELETED : expiredAfter(maxAgeMs ?? 0)
    const count = await inBatches(round, async () => giveUpBatch(db, round, due, reason, lines))
    done[gone ? 'endpointDeleted' : 'expired'] += count
  }
  return done
}

const ENDPOINT_DELETED: Reason = { code: 'endpointDeleted', error: 'its endpoint was deleted' }

function expiredAfter(maxAgeMs: number): Reason {
  const error = `it was due for more than ${Math.round(maxAgeMs / 1_000)} s, and its endpoint was disabled, its circuit open, or no dispatcher at work`
  return { code: 'expired', error }
}

interface Stuck {
  readonly endpointId: string
  readonly gone: boolean
}

/** Endpoints that are gone, or have something that has been due for too long: it stands first in their index. */
async function stuckEndpoints(
  db: Queryable,
  schema: string,
  bucket: number,
  maxAgeMs: number | null,
): Promise<Stuck[]> {
  const table = deliveriesOf(schema)
  const { rows } = await db.query<Stuck>({
    text: `with recursive ${pendingEndpointsSql(table)},
judged as (
  select waiting.endpoint_id, not exists (select from ${endpointsOf(schema)} as e where e.id = waiting.endpoint_id) as gone, (
    select d.next_attempt_at from ${table} as d
    where d.bucket = $1::smallint and d.endpoint_id = waiting.endpoint_id and d.delivery_status = 'pending' and not d.behind
    order by d.next_attempt_at limit 1
  ) as oldest
  from waiting where waiting.endpoint_id is not null
)
select endpoint_id as "endpointId", gone from judged
where gone or oldest < now() - $2::float8 * interval '1 millisecond'`,
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

/**
 * Gives up those that stand first in their lines, or in none, and of the rest of these lines as many again: a line of
 * 100,000 is not taken apart one by one.
 */
async function giveUpBatch(
  db: Database,
  { schema, batch }: Round,
  { bucket, endpointId, maxAgeMs }: Due,
  reason: Reason,
  lines: LeaseStore,
): Promise<{ readonly done: number; readonly more: boolean }> {
  const table = deliveriesOf(schema)
  const stuck = `d.bucket = $1::smallint and d.delivery_status = 'pending' and ${NOT_IN_FLIGHT}
  and ($2::float8 is null or d.next_attempt_at < now() - $2::float8 * interval '1 millisecond')`
  return db.transaction(async (tx) => {
    const first = await tx.query<{ id: string; line: string | null }>({
      text: `select d.id::text as id, d.line from ${table} as d
where ${stuck} and d.endpoint_id = $3::uuid and not d.behind
order by d.next_attempt_at, d.id limit $4::int for update skip locked`,
      values: [bucket, maxAgeMs, endpointId, batch],
    })
    const keys = [...new Set(first.rows.flatMap(({ line }) => (line === null ? [] : [line])))]
    const behind =
      keys.length === 0
        ? []
        : (
            await tx.query<{ id: string }>({
              text: `select d.id::text as id from ${table} as d
where ${stuck} and d.line = any ($3::text[]) and d.behind
limit $4::int for update skip locked`,
              values: [bucket, maxAgeMs, keys, batch],
            })
          ).rows
    const ids = [...first.rows, ...behind].map(({ id }) => id)
    const done = ids.length === 0 ? 0 : await giveUp(tx, { schema, bucket, ids }, reason, lines)
    if (done > 0) await tx.query({ text: `select ${quoteQualified(schema, 'wake')}('webhooks')` })
    // Where lines go on there may be others to give up behind them.
    return { done, more: done > 0 && (keys.length > 0 || first.rows.length === batch) }
  })
}

/** Asks first: an UPDATE wakes every dispatcher, also when it changes nothing. */
async function forgetSecrets(db: Queryable, { schema, batch }: Round): Promise<number> {
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
