/**
 * Cancel: pending deliveries are given up without another attempt. They count as failed, with the code `cancelled`, and
 * a requeue brings them back.
 *
 * - What is in flight is not cancelled, and counted: its request may have arrived already.
 * - The next delivery of the ordering key of a cancelled one becomes the head.
 * - Each batch is one short transaction, with its entry in the audit. A cancel that is stopped or dies does not change the
 *   rest.
 */
import { randomUUID } from 'node:crypto'
import { audit } from '../../admin/audit.ts'
import { checkLimit, checkPrincipal, checkReason, invalid } from '../../admin/request-checks.ts'
import { values } from '../../admin/statement-values.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { type Change, type Following, targetOf } from './change.ts'
import { checkFilter, type DeliveryFilter, isEmptyFilter, statusesOf } from './filter.ts'
import { giveUp, NOT_IN_FLIGHT } from './give-up.ts'
import { deliveriesOf } from './tables.ts'
import {
  nextCursor,
  beginning,
  CHANGE_BATCH,
  type Chosen,
  SCANNED,
  type Scanned,
  scannedSql,
  matchedSql,
  type Cursor,
  START,
} from './walk.ts'

export interface CancelOptions extends Change, Following {}

export interface Cancelled {
  readonly dryRun: boolean
  /** How many matched, and were not in flight, when it began. */
  readonly matched: number
  /** How many besides them were in flight: they are not cancelled. */
  readonly inFlight: number
  readonly cancelled: number
  /** Names the cancel in the audit; undefined when nothing was changed. */
  readonly cancel: string | undefined
  /** False: it was stopped before its end. */
  readonly finished: boolean
}

export const CANCEL_ACTION = 'webhooks.cancel'

/** Cancels by id or by filter. */
export async function cancel(db: Database, options: CancelOptions): Promise<Cancelled> {
  const { schema = 'leasehold', dryRun = false, limit, signal } = options
  const { filter, principal, reason } = checked(options)
  const { asOf, ends } = await beginning(db, schema)
  const scopes = ends.map(({ bucket, upTo }): Chosen => ({
    schema,
    filter,
    status: 'pending',
    bucket,
    upTo,
    asOf,
  }))
  const counted = await count(db, scopes, signal)
  const nothing = { cancelled: 0, cancel: undefined, dryRun }
  if (counted === undefined) return { ...nothing, matched: 0, inFlight: 0, finished: false }
  const matched = Math.min(counted.matched, limit ?? Infinity)
  if (dryRun || matched === 0) return { ...nothing, ...counted, matched, finished: true }
  const startedAt = new Date(asOf * 1_000).toISOString()
  const begun = { cancel: randomUUID(), reason, filter, limit: limit ?? null, matched, startedAt }
  const done = await cancelAll(db, scopes, { ...options, schema, principal, begun })
  const name = done.cancelled === 0 ? undefined : begun.cancel
  return { ...done, ...counted, matched, dryRun, cancel: name }
}

interface Running extends CancelOptions {
  readonly schema: string
  readonly principal: string
  /** What every entry in the audit says. */
  readonly begun: {
    readonly cancel: string
    readonly reason: string
    readonly matched: number
    readonly filter: DeliveryFilter
  }
}

async function cancelAll(
  db: Database,
  scopes: readonly Chosen[],
  running: Running,
): Promise<Pick<Cancelled, 'cancelled' | 'finished'>> {
  const { limit = Infinity, signal, onProgress, begun } = running
  let cancelled = 0
  for (const scope of scopes) {
    let cursor: Cursor | undefined = START
    while (cursor !== undefined) {
      if (signal?.aborted === true) return { cancelled, finished: false }
      const room = Math.min(CHANGE_BATCH, limit - cancelled)
      const step: Step = await takeStep(db, scope, cursor, { ...running, room, before: cancelled })
      cancelled += step.cancelled
      cursor = step.next
      if (step.cancelled > 0) await onProgress?.({ matched: begun.matched, changed: cancelled })
      if (cancelled >= limit) return { cancelled, finished: true }
    }
  }
  return { cancelled, finished: true }
}

interface Step {
  readonly cancelled: number
  readonly next: Cursor | undefined
}

async function takeStep(
  db: Database,
  scope: Chosen,
  cursor: Cursor,
  given: Running & { readonly room: number; readonly before: number },
): Promise<Step> {
  const { schema, principal, begun, room, before } = given
  return db.transaction(async (tx) => {
    const { ids, next } = await pick(tx, scope, cursor, room)
    if (ids.length === 0) return { cancelled: 0, next }
    const error = `cancelled by ${principal}: ${begun.reason}`
    const cancelled = await giveUp(tx, { schema, bucket: scope.bucket, ids }, { code: 'cancelled', error })
    const batch = { count: cancelled, firstId: ids[0], lastId: ids.at(-1) }
    const details = { ...begun, cancelled: before + cancelled, batch }
    await audit(tx, schema, { principal, action: CANCEL_ACTION, target: targetOf(begun.filter), details })
    // The next ones of their ordering keys may be due.
    await tx.query({ text: `select ${quoteQualified(schema, 'wake')}('webhooks')` })
    return { cancelled, next }
  })
}

/**
 * The next ones, locked. Not SKIP LOCKED: whoever holds one is about to claim or to requeue it, and waiting tells which.
 */
async function pick(
  tx: Queryable,
  scope: Chosen,
  cursor: Cursor,
  room: number,
): Promise<{ readonly ids: readonly string[]; readonly next: Cursor | undefined }> {
  const value = values()
  const { rows } = await tx.query<Scanned & { readonly ids: readonly string[] }>({
    text: `with ${scannedSql(scope, cursor, value)},
picked as materialized (
  select d.id from ${deliveriesOf(scope.schema)} as d
  where ${matchedSql(scope, cursor, value)} and ${NOT_IN_FLIGHT}
  order by d.id limit ${value(room, 'int')} for update of d
)
select ${SCANNED}, array(select id::text from picked order by picked.id) as ids`,
    values: value.all,
  })
  const [row] = rows
  const ids = row?.ids ?? []
  const last = ids.at(-1)
  // A full batch ends before the scan does.
  if (ids.length === room && last !== undefined) return { ids, next: { at: cursor.at, id: last } }
  return { ids, next: row === undefined ? undefined : nextCursor(row) }
}

type Counted = Pick<Cancelled, 'matched' | 'inFlight'>

/** Undefined when it was told to stop. */
async function count(
  db: Database,
  scopes: readonly Chosen[],
  signal: AbortSignal | undefined,
): Promise<Counted | undefined> {
  const sum = { matched: 0, inFlight: 0 }
  for (const scope of scopes) {
    let cursor: Cursor | undefined = START
    while (cursor !== undefined) {
      if (signal?.aborted === true) return undefined
      const row: (Counted & Scanned) | undefined = await countScan(db, scope, cursor)
      sum.matched += row?.matched ?? 0
      sum.inFlight += row?.inFlight ?? 0
      cursor = row === undefined ? undefined : nextCursor(row)
    }
  }
  return sum
}

async function countScan(
  db: Queryable,
  scope: Chosen,
  cursor: Cursor,
): Promise<(Counted & Scanned) | undefined> {
  const value = values()
  const { rows } = await db.query<Counted & Scanned>({
    text: `with ${scannedSql(scope, cursor, value)}
select ${SCANNED}, count(*) filter (where ${NOT_IN_FLIGHT})::int as matched,
  count(*) filter (where not ${NOT_IN_FLIGHT})::int as "inFlight"
from ${deliveriesOf(scope.schema)} as d where ${matchedSql(scope, cursor, value)}`,
    values: value.all,
  })
  return rows[0]
}

function checked(options: CancelOptions): {
  readonly filter: DeliveryFilter
  readonly principal: string
  readonly reason: string
} {
  const { ids, limit, dryRun = false } = options
  const filter: DeliveryFilter = { ...options.filter, ...(ids === undefined ? {} : { ids }) }
  if (isEmptyFilter(filter)) {
    throw invalid(
      'filter',
      filter,
      'Give ids or at least one condition: the status pending, to cancel all of them.',
    )
  }
  checkFilter(filter)
  checkLimit(limit)
  const other = filter.status === undefined && filter.failedSince === undefined ? [] : statusesOf(filter)
  const finished = other.find((status) => status !== 'pending')
  if (finished !== undefined) throw invalid('status', finished, 'Only pending deliveries can be cancelled.')
  if (dryRun) return { filter, principal: '', reason: '' }
  const reason = checkReason(options.reason)
  return { filter, principal: checkPrincipal(options.principal, 'cancel'), reason }
}
