/**
 * Requeue: deliveries that have failed are attempted once more; on request, those that were delivered as well.
 *
 * - What is pending is left alone: it will be attempted anyway.
 * - The event id stays, so that a receiver that has had the event recognises it; so do the token and the
 *   history of attempts.
 * - Deliveries of an ordering key go in the order of their ids. Until a requeued one is finished, later ones of its key
 *   wait for it, also when a rate delays it.
 * - A requeue concerns what was finished when it began. What fails once more meanwhile is not requeued a second time.
 * - Each batch is one short transaction, with its entry in the audit. A requeue that is stopped or dies does not change the
 *   rest; the same call once more requeues the rest of what has failed.
 */
import { randomUUID } from 'node:crypto'
import { audit } from '../../admin/audit.ts'
import { checkLimit, checkPrincipal, checkRate, checkReason, invalid } from '../../admin/request-checks.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { type Change, type Following, targetOf } from './change.ts'
import { checkFilter, type DeliveryFilter, isEmptyFilter, statusesOf } from './filter.ts'
import { type CountedMatches, countMatches, NONE, requeueBatch } from './requeue-sql.ts'
import { beginning, CHANGE_BATCH, type Chosen, type Cursor, START } from './walk.ts'

export interface RequeueOptions extends Change, Following {
  /** Deliveries per second. Default: all at once. */
  readonly rate?: number | undefined
}

export interface Requeued extends CountedMatches {
  readonly dryRun: boolean
  readonly requeued: number
  /** Names the requeue in the audit; undefined when nothing was changed. */
  readonly requeue: string | undefined
  /** When the last of them may be attempted. */
  readonly lastDueAt: Date | undefined
  /** False: it was stopped before its end. */
  readonly finished: boolean
}

export const REQUEUE_ACTION = 'webhooks.requeue'
export const RECOVER_ACTION = 'webhooks.recover'

/** Requeues by id or by filter: what has failed, unless the filter names another state. */
export async function requeue(db: Database, options: RequeueOptions): Promise<Requeued> {
  return run(db, options, REQUEUE_ACTION)
}

export interface RecoverOptions extends Omit<RequeueOptions, 'ids' | 'filter'> {
  /** Everything that has failed at this moment or later. */
  readonly since: Date
  /** Of this endpoint only. */
  readonly endpoint?: string | undefined
  /** Of the endpoints of this tenant only. */
  readonly tenant?: string | undefined
}

/** Requeues all that has failed since a moment: an endpoint was down, and is back. */
export async function recover(db: Database, options: RecoverOptions): Promise<Requeued> {
  const { since, endpoint, tenant, ...rest } = options
  const filter = { status: 'failed', failedSince: since, endpoint, tenant } as const
  return run(db, { ...rest, filter }, RECOVER_ACTION)
}

const REQUEUED = ['failed', 'delivered'] as const

type Requeueable = (typeof REQUEUED)[number]

async function run(db: Database, options: RequeueOptions, action: string): Promise<Requeued> {
  const { schema = 'leasehold', dryRun = false, rate, limit, signal } = options
  const { filter, statuses, principal, reason } = checked(options)
  const { asOf, ends } = await beginning(db, schema)
  const scopes = statuses.flatMap((status) =>
    ends.map(({ bucket, upTo }): Chosen => ({ schema, filter, status, bucket, upTo, asOf })),
  )
  const counted = await count(db, scopes, signal)
  if (counted === undefined) return { ...NOTHING, ...NONE, dryRun, finished: false }
  const matched = Math.min(counted.matched, limit ?? Infinity)
  if (dryRun || matched === 0) return { ...NOTHING, ...counted, matched, dryRun, finished: true }
  const begun = {
    requeue: randomUUID(),
    reason,
    filter,
    statuses,
    rate: rate ?? null,
    limit: limit ?? null,
    matched,
    startedAt: new Date(asOf * 1_000).toISOString(),
  }
  const done = await requeueAll(db, scopes, { ...options, schema, principal, action, begun, asOf })
  return { ...done, ...counted, matched, dryRun, requeue: done.requeued === 0 ? undefined : begun.requeue }
}

const NOTHING = { requeued: 0, requeue: undefined, lastDueAt: undefined }

interface Running extends RequeueOptions {
  readonly schema: string
  readonly principal: string
  readonly action: string
  /** What every entry in the audit says. */
  readonly begun: { readonly requeue: string; readonly matched: number; readonly filter: DeliveryFilter }
  readonly asOf: number
}

async function requeueAll(
  db: Database,
  scopes: readonly Chosen[],
  running: Running,
): Promise<Pick<Requeued, 'requeued' | 'lastDueAt' | 'finished'>> {
  const { limit = Infinity, rate, signal, onProgress, begun } = running
  let progress: Progress = { requeued: 0, lastDue: undefined, nextDue: running.asOf }
  const ended = (finished: boolean): Pick<Requeued, 'requeued' | 'lastDueAt' | 'finished'> => ({
    requeued: progress.requeued,
    lastDueAt: progress.lastDue === undefined ? undefined : new Date(progress.lastDue * 1_000),
    finished,
  })
  for (const scope of scopes) {
    let cursor: Cursor | undefined = START
    while (cursor !== undefined) {
      if (signal?.aborted === true) return ended(false)
      const before: Progress = progress
      const step = await takeStep(db, scope, cursor, before, { ...running, rate, limit })
      progress = step.progress
      cursor = step.next
      if (progress.requeued > before.requeued) {
        await onProgress?.({ matched: begun.matched, changed: progress.requeued })
      }
      if (progress.requeued >= limit) return ended(true)
    }
  }
  return ended(true)
}

interface Progress {
  readonly requeued: number
  readonly lastDue: number | undefined
  readonly nextDue: number
}

async function takeStep(
  db: Database,
  scope: Chosen,
  cursor: Cursor,
  { requeued, lastDue, nextDue }: Progress,
  { schema, principal, action, begun, rate, limit = Infinity }: Running,
): Promise<{ readonly progress: Progress; readonly next: Cursor | undefined }> {
  const room = Math.min(CHANGE_BATCH, limit - requeued)
  return db.transaction(async (tx) => {
    const batch = await requeueBatch(tx, scope, cursor, { rate, nextDue }, room)
    if (batch.requeued === 0) return { progress: { requeued, lastDue, nextDue }, next: batch.next }
    const { firstId, lastId } = batch
    const due = batch.lastDue ?? nextDue
    const progress = {
      requeued: requeued + batch.requeued,
      lastDue: Math.max(due, lastDue ?? due),
      nextDue: rate === undefined ? nextDue : due + 1 / rate,
    }
    const details = {
      ...begun,
      requeued: progress.requeued,
      batch: { count: batch.requeued, firstId, lastId },
    }
    await audit(tx, schema, { principal, action, target: targetOf(begun.filter), details })
    await tx.query({ text: `select ${quoteQualified(schema, 'wake')}('webhooks')` })
    return { progress, next: batch.next }
  })
}

/** Undefined when it was told to stop. */
async function count(
  db: Database,
  scopes: readonly Chosen[],
  signal: AbortSignal | undefined,
): Promise<CountedMatches | undefined> {
  const sum = { ...NONE }
  for (const scope of scopes) {
    let cursor: Cursor | undefined = START
    while (cursor !== undefined) {
      if (signal?.aborted === true) return undefined
      const page: Awaited<ReturnType<typeof countMatches>> = await countMatches(db, scope, cursor)
      sum.matched += page.counted.matched
      sum.endpointDisabled += page.counted.endpointDisabled
      sum.endpointGone += page.counted.endpointGone
      cursor = page.next
    }
  }
  return sum
}

function checked(options: RequeueOptions): {
  readonly filter: DeliveryFilter
  readonly statuses: readonly Requeueable[]
  readonly principal: string
  readonly reason: string
} {
  const { ids, rate, limit, dryRun = false } = options
  const filter: DeliveryFilter = { ...options.filter, ...(ids === undefined ? {} : { ids }) }
  if (isEmptyFilter(filter)) {
    throw invalid(
      'filter',
      filter,
      'Give ids or at least one condition: the status, to requeue all that has failed.',
    )
  }
  checkFilter(filter)
  checkRate(rate, 'deliveries')
  checkLimit(limit)
  const statuses = requeueable(filter)
  if (dryRun) return { filter, statuses, principal: '', reason: '' }
  const reason = checkReason(options.reason)
  return { filter, statuses, principal: checkPrincipal(options.principal, 'requeue'), reason }
}

function requeueable(filter: DeliveryFilter): readonly Requeueable[] {
  if (filter.status === undefined) return ['failed']
  const named = statusesOf(filter)
  if (named.includes('pending')) {
    throw invalid(
      'status',
      'pending',
      'Only failed and delivered ones are requeued; the others will be attempted anyway.',
    )
  }
  return REQUEUED.filter((status) => named.includes(status))
}
