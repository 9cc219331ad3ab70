import { audit } from '../../operations/audit.ts'
import { checkPrincipal, checkReason, checkTexts, invalid } from '../../operations/request-checks.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import { isUniqueViolation } from '../../lease/data-errors.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { positionalParameters } from '../../postgres/parameters.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { withOperator } from '../history.ts'
import { outboxOf, QUEUED } from './filter.ts'
import { resetSql } from './replay.ts'

export interface UnblockRequest {
  readonly schema?: string | undefined
  readonly orderingKey: string
  /** Publish the event that holds the key up, now and before those that wait for it. Default: they go on without it. */
  readonly replay?: boolean | undefined
  /** Who decided so, and why: both are recorded in the audit. */
  readonly principal: string
  readonly reason: string
}

export interface Unblocked {
  /** Dead events that had held the key up. */
  readonly parked: number
  /** Events that failed repeatedly: dead now by the operator's decision (LIFE-08), or due at once with `replay`. */
  readonly failing: number
}

export const UNBLOCK_ACTION = 'outbox.unblock'

/** How often it is repeated when a relay claims another event of the key at the same moment. */
const MAX_RACES = 3

/**
 * Lets an ordering key go on that an event holds up: one that is parked, or the head of the key when attempts at it have
 * failed. Where nothing does, nothing changes.
 */
export async function unblock(db: Database, request: UnblockRequest): Promise<Unblocked> {
  const { schema = 'leasehold' } = request
  const checked = { ...request, schema, ...checkRequest(request) }
  const unblocked = { parked: 0, failing: 0 }
  for (const bucket of await ownBuckets(db, schema)) {
    const { parked, failing } = await retryRaces(async () =>
      db.transaction(async (tx) => unblockIn(tx, { ...checked, bucket })),
    )
    unblocked.parked += parked
    unblocked.failing += failing
  }
  return unblocked
}

async function retryRaces(attempt: () => Promise<Unblocked>): Promise<Unblocked> {
  for (let races = 0; ; races += 1) {
    try {
      return await attempt()
    } catch (error) {
      if (!isUniqueViolation(error) || races >= MAX_RACES) throw error
    }
  }
}

interface InBucket extends UnblockRequest {
  readonly schema: string
  readonly bucket: number
}

async function unblockIn(tx: Queryable, request: InBucket): Promise<Unblocked> {
  const { schema, orderingKey, replay = false, principal, reason } = request
  const parked = await unpark(tx, request)
  const failing = parked.length > 0 ? [] : await endFailing(tx, request)
  const events = [...parked, ...failing]
  if (events.length > 0) {
    const details = { reason, replay, events }
    await audit(tx, schema, { principal, action: UNBLOCK_ACTION, target: orderingKey, details })
    await tx.query({ text: `select ${quoteQualified(schema, 'wake')}('outbox')` })
  }
  return { parked: parked.length, failing: failing.length }
}

async function unpark(tx: Queryable, request: InBucket): Promise<string[]> {
  const { schema, bucket, orderingKey, replay } = request
  const parameter = positionalParameters()
  const change = replay === true ? `${resetSql(request, parameter)}, available_at = now()` : 'parked = false'
  return changed(tx, {
    text: `update ${outboxOf(schema)} set ${change}
where bucket = ${parameter(bucket, 'smallint')} and ordering_key = ${parameter(orderingKey, 'text')} and ${QUEUED} and parked
returning event_id`,
    values: parameter.values,
  })
}

/**
 * The head of the key, if it waits for another attempt. There is no transition from PENDING to DEAD: the operator claims
 * the event, as a relay would, and gives it up. The lock keeps relays from claiming it meanwhile.
 */
async function endFailing(
  tx: Queryable,
  { schema, bucket, orderingKey, replay, principal, reason }: InBucket,
): Promise<string[]> {
  const outbox = outboxOf(schema)
  const { rows } = await tx.query<{ id: string }>({
    text: `select id from ${outbox}
where bucket = $1 and status = 'PENDING' and attempts > 0
  and id = (select id from ${outbox} where bucket = $1 and ordering_key = $2 and ${QUEUED} order by id limit 1)
  -- An event of the key that is in flight although it is not the head ends first.
  and (select id from ${outbox} where bucket = $1 and ordering_key = $2 and status = 'CLAIMED') is null
for update`,
    values: [bucket, orderingKey],
  })
  const [id] = rows.map((row) => row.id)
  if (id === undefined) return []
  const parameter = positionalParameters()
  const event = `where bucket = ${parameter(bucket, 'smallint')} and id = ${parameter(id, 'bigint')} returning event_id`
  if (replay === true) {
    return changed(tx, {
      text: `update ${outbox} set attempts = 0, expiries = 0, last_error = null, available_at = now(),
  history = ${withOperator({ outcome: 'replayed', principal, reason }, parameter)} ${event}`,
      values: parameter.values,
    })
  }
  await changed(tx, {
    text: `update ${outbox} set status = 'CLAIMED', claimed_at = now(), claimed_by = $3, locked_until = now(),
  lock_token = lock_token + 1 ${event}`,
    values: [bucket, id, `operator ${principal}`],
  })
  return changed(tx, {
    text: `update ${outbox} set status = 'DEAD', dead_at = now(), claimed_at = null, claimed_by = null,
  locked_until = null, last_error = coalesce(last_error || ' ', '') || ${parameter(`(given up by ${principal}: ${reason})`, 'text')},
  history = ${withOperator({ outcome: 'givenUp', principal, reason }, parameter)} ${event}`,
    values: parameter.values,
  })
}

async function changed(
  tx: Queryable,
  statement: { text: string; values: readonly unknown[] },
): Promise<string[]> {
  const { rows } = await tx.query<{ event_id: string }>(statement)
  return rows.map((row) => row.event_id)
}

function checkRequest({
  orderingKey,
  principal,
  reason,
}: UnblockRequest): Pick<UnblockRequest, 'principal' | 'reason'> {
  if (typeof orderingKey !== 'string' || orderingKey.trim() === '')
    throw invalid('orderingKey', orderingKey, 'Give the ordering key that is held up.')
  checkTexts({ orderingKey })
  return { reason: checkReason(reason), principal: checkPrincipal(principal, 'change') }
}
