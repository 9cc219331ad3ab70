import { audit } from '../../audit.ts'
import { LeaseholdError } from '../../errors.ts'
import { type LeaseStore, openLeaseStore } from '../../lease/store.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { outboxTable } from '../table.ts'
import { bucketsOf, outboxOf } from './browse-buckets.ts'
import { RESET } from './replay-sql.ts'

export interface UnblockRequest {
  readonly schema?: string | undefined
  readonly orderingKey: string
  /** Publish the event that holds the key up, now and before those behind it. Default: they go on without it. */
  readonly replay?: boolean | undefined
  /** Who decided so, and why: both are kept in the audit. */
  readonly principal: string
  readonly reason: string
}

export interface Unblocked {
  /** Dead events that had held the key up. */
  readonly parked: number
  /** Events that kept failing: dead now by the operator's decision (LIFE-08), or due at once with `replay`. */
  readonly failing: number
}

export const UNBLOCK_ACTION = 'outbox.unblock'

/**
 * Lets an ordering key go on that an event holds up: one that is parked, or the first of the key when attempts at it
 * have failed. Where nothing does, nothing changes.
 */
export async function unblock(db: Database, request: UnblockRequest): Promise<Unblocked> {
  const { schema = 'leasehold', orderingKey, principal, reason } = request
  refuseMissing({ orderingKey, principal, reason })
  const unblocked = { parked: 0, failing: 0 }
  for (const bucket of await bucketsOf(db, schema)) {
    const store = await openLeaseStore(db, outboxTable({ schema }), { owner: 'operator', bucket })
    const { parked, failing } = await db.transaction(async (tx) =>
      unblockIn(tx, { ...request, schema, bucket }, store),
    )
    unblocked.parked += parked
    unblocked.failing += failing
  }
  return unblocked
}

interface InBucket extends UnblockRequest {
  readonly schema: string
  readonly bucket: number
}

async function unblockIn(tx: Queryable, request: InBucket, store: LeaseStore): Promise<Unblocked> {
  const { schema, orderingKey, replay = false, principal, reason } = request
  const parked = await unpark(tx, request)
  const failing = parked.length > 0 ? [] : await endFailing(tx, request)
  const events = [...parked, ...failing]
  if (events.length > 0) {
    await store.advance({ keys: [orderingKey], tx })
    const details = { reason, replay, events }
    await audit(tx, schema, { principal, action: UNBLOCK_ACTION, target: orderingKey, details })
    await tx.query({ text: `select ${quoteQualified(schema, 'wake')}('outbox')` })
  }
  return { parked: parked.length, failing: failing.length }
}

async function unpark(tx: Queryable, { schema, bucket, orderingKey, replay }: InBucket): Promise<string[]> {
  const change = replay === true ? `${RESET}, available_at = now()` : 'parked = false'
  return changed(tx, {
    text: `update ${outboxOf(schema)} set ${change}
where bucket = $1 and ordering_key = $2 and parked returning event_id`,
    values: [bucket, orderingKey],
  })
}

/**
 * The first of the key, if it waits for another attempt. A state machine has no way from PENDING to DEAD: the operator
 * claims the event, as a relay would, and gives it up.
 */
async function endFailing(
  tx: Queryable,
  { schema, bucket, orderingKey, replay, principal, reason }: InBucket,
): Promise<string[]> {
  const outbox = outboxOf(schema)
  const { rows } = await tx.query<{ id: string }>({
    text: `select id from (
  select id, status, attempts from ${outbox}
  where bucket = $1 and ordering_key = $2 and (indexed_status in ('PENDING', 'CLAIMED') or parked)
  order by (indexed_status <> 'CLAIMED'), id limit 1
) as first
where status = 'PENDING' and attempts > 0`,
    values: [bucket, orderingKey],
  })
  const [id] = rows.map((row) => row.id)
  if (id === undefined) return []
  const failing = `where bucket = $1 and id = $2 and status = 'PENDING' and attempts > 0 returning event_id`
  if (replay === true) {
    const set = 'attempts = 0, last_error = null, available_at = now(), behind = false'
    return changed(tx, { text: `update ${outbox} set ${set} ${failing}`, values: [bucket, id] })
  }
  const claimed = await changed(tx, {
    text: `update ${outbox} set status = 'CLAIMED', available_at = null, behind = false, claimed_at = now(),
  claimed_by = $3, locked_until = now(), lock_token = lock_token + 1 ${failing}`,
    values: [bucket, id, `operator ${principal}`],
  })
  if (claimed.length === 0) return []
  return changed(tx, {
    text: `update ${outbox} set status = 'DEAD', claimed_at = null, claimed_by = null, locked_until = null,
  last_error = concat_ws(' ', last_error, $3::text) where bucket = $1 and id = $2 returning event_id`,
    values: [bucket, id, `(given up by ${principal}: ${reason})`],
  })
}

async function changed(tx: Queryable, statement: { text: string; values: unknown[] }): Promise<string[]> {
  const { rows } = await tx.query<{ event_id: string }>(statement)
  return rows.map((row) => row.event_id)
}

function refuseMissing(given: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(given)) {
    if (typeof value === 'string' && value.trim() !== '') continue
    throw new LeaseholdError('REQUEST_INVALID', `${name} is ${JSON.stringify(value)}.`, {
      remedy: 'Give the ordering key, who unblocks it, and why.',
    })
  }
}
