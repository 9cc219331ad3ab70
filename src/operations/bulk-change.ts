/**
 * One engine for what operators do to many rows: replay, cancel. README.md in this folder has the rules.
 *
 * A change goes through the table along an index, batch after batch. Each batch is one short transaction: it locks the
 * next rows that match, writes to them, and adds an entry to the audit with everything that is needed to continue from
 * there. The entry and the change are therefore there together or not at all, and a change that is killed is resumed after
 * exactly the last row it has changed.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { isUniqueViolation } from '../lease/data-errors.ts'
import type { Database } from '../postgres/database.ts'
import { isLockConflict } from '../postgres/failures.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { PositionalParameters } from '../postgres/parameters.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { MAX_TIMER_MS } from '../timeout.ts'
import { audit } from './audit.ts'
import {
  type BucketScan,
  changeBatch,
  type ChangedRows,
  countBatch,
  findLastIds,
  findMatching,
  type LastIds,
  readClock,
  type ScanPosition,
} from './bulk-change-sql.ts'
import {
  auditDetails,
  type ChangeRecord,
  type Position,
  readRecord,
  requireLatest,
  verbOf,
} from './change-record.ts'
import { explainUnchanged, type NamedRow, normaliseIds, type Skipped } from './named-rows.ts'
import { checkFields, checkLimit, checkPrincipal, checkRate, checkReason, invalid } from './request-checks.ts'

/** What an application declares of a change. `Filter` is what rows are chosen by, `Count` names what else is counted. */
export interface BulkChange<Filter extends RowFilter, Count extends string = never> {
  /** As in the audit: `outbox.replay`. The part after the dot is the verb in messages. */
  readonly action: string
  /** What one row, and several, are called in messages. */
  readonly row: string
  readonly rows: string
  /** The table, without its schema. It has an `id bigint`, in the order of which rows were written. */
  readonly table: string
  /** Whether the table has a bucket column: then every statement names one bucket. */
  readonly bucketed: boolean
  /** How many rows one transaction changes at most. Default 1,000. */
  readonly batchSize?: number
  /** Refuses a filter that can only be a mistake, or that names rows which this change may not touch. */
  readonly checkFilter: (filter: Filter) => void
  /** The fields of the filter that are dates: in the audit they are texts. */
  readonly dates: readonly (keyof Filter)[]
  /** The indexes that lead to the rows, one after the other. */
  readonly scans: (filter: Filter) => readonly Scan<Filter>[]
  /**
   * Which of the rows that match may be changed. It is evaluated once more when the row is locked, so that a row which
   * a worker claims at the same moment is left alone.
   */
  readonly guard: (schema: string) => string
  /** What is counted of the rows that match, before anything is changed: SQL aggregates. Null: `afterBatch` counts it. */
  readonly counts: (schema: string) => Readonly<Record<Count, string | null>>
  /** Of the rows that have the same value here, changing one rules out the others; `why` says so of one of these. */
  readonly onePer?: { readonly value: string; readonly why: string }
  /** What `afterBatch` would count if these rows were changed, for the dry run. */
  readonly previewCounts?: (
    db: Queryable,
    schema: string,
    ids: readonly string[],
  ) => Promise<Readonly<Partial<Record<Count, number>>>>
  /** The assignments of the UPDATE. Never the token: whoever holds an earlier lease stays fenced off. */
  readonly set: (by: ChangedBy, parameter: PositionalParameters) => string
  /** The column that says when a row is due. With a rate, each row is due at a time of its own. */
  readonly dueColumn?: string
  /** What else is written in the transaction of a batch; what it returns is added to the counts. */
  readonly afterBatch?: (
    tx: Queryable,
    batch: ChangedBatch,
  ) => Promise<Readonly<Partial<Record<Count, number>>>>
  /** The object of the audit entry, where the change concerns one object that is not a row: an endpoint. */
  readonly target?: (filter: Filter) => string | undefined
  /** Which workers are woken after each batch. */
  readonly wakes: readonly string[]
  /** Finds all rows that the ids of the filter name, whatever its other conditions, and says why one is not changed. */
  readonly findNamed: (
    db: Database,
    schema: string,
    filter: FilterWithIds<Filter>,
  ) => Promise<readonly NamedRow[]>
}

/** What every filter has. */
export interface RowFilter {
  readonly ids?: readonly string[] | undefined
}

export type FilterWithIds<Filter> = Filter & { readonly ids: readonly string[] }

export interface Scan<Filter> {
  /**
   * The column with the time at which rows were finished, if an index on (bucket, column, id) is scanned. Without it the
   * rows are scanned in the order of their ids.
   */
  readonly orderedBy?: string
  /** The part of the filter that the index answers: it bounds how many rows a statement reads. */
  readonly narrow: (filter: Filter, parameter: PositionalParameters) => string
  /** The whole filter. */
  readonly where: (filter: Filter, parameter: PositionalParameters, schema: string) => string
  /** When a row was finished, in a scan by id. Rows that were finished after the change began do not match. */
  readonly finishedAt?: string
}

export interface ChangedBy {
  readonly principal: string
  readonly reason: string
}

export interface ChangedBatch {
  readonly schema: string
  /** Null: the table has no buckets. */
  readonly bucket: number | null
  readonly ids: readonly string[]
  /** When the last of them is due, in seconds since 1970. Null: the change has no due column. */
  readonly lastDueSeconds: number | null
}

/** For callers that follow a change, or stop it. */
export interface FollowOptions {
  readonly schema?: string | undefined
  /** Stops the change after the batch that is being written. */
  readonly signal?: AbortSignal | undefined
  /** Called after each batch; the next one waits for it. */
  readonly onProgress?: ((progress: ChangeProgress) => void | Promise<void>) | undefined
}

export interface BulkChangeOptions<Filter> extends FollowOptions {
  /** The ids of rows. With a filter as well, rows that satisfy both. */
  readonly ids?: readonly string[] | undefined
  readonly filter?: Filter | undefined
  /** Counts the rows, and changes nothing. */
  readonly dryRun?: boolean | undefined
  /** Rows per second. Default: without a limit. Two changes at the same time have a rate each. */
  readonly rate?: number | undefined
  /** Change at most so many rows, the oldest first. */
  readonly limit?: number | undefined
  /** Who asks for the change, and why. A dry run needs neither. */
  readonly principal?: string | undefined
  readonly reason?: string | undefined
}

export interface ResumeOptions extends FollowOptions {
  readonly principal: string
  /** The server that runs it in the background continues it, with the rights of who asked for it. Default false. */
  readonly inBackground?: boolean | undefined
  /** Called before each batch, which waits for it. Where it cancels the change, the batch is not written. */
  readonly beforeBatch?: (() => Promise<void>) | undefined
}

export interface ChangeProgress {
  /** The id by which it can be resumed. */
  readonly changeId: string
  readonly matched: number
  /** How many rows were changed so far, in earlier runs too. */
  readonly changed: number
}

export interface BulkChangeResult<Count extends string = never> {
  /** The id by which it is found in the audit and can be resumed; undefined when nothing was changed. */
  readonly changeId: string | undefined
  readonly dryRun: boolean
  /** How many rows matched and could be changed when the change began; with a limit, at most that many. */
  readonly matched: number
  /** How many rows this call changed. */
  readonly changed: number
  /** How many rows were changed before it was resumed. */
  readonly changedBefore: number
  readonly counts: Readonly<Record<Count, number>>
  readonly firstId: string | undefined
  readonly lastId: string | undefined
  /** When the last of the rows is due. */
  readonly lastDueAt: Date | undefined
  /** False: the change was stopped. */
  readonly finished: boolean
  /** The ids that were named and of which no row was changed, or in a dry run would be. */
  readonly skipped: readonly Skipped[]
}

const DEFAULT_BATCH_SIZE = 1_000

/** How often a batch is tried that deadlocks with workers, or meets a row that is inserted at the same moment. */
const MAX_TRIES = 5

/** Changes rows by their ids or by a filter. */
export async function runBulkChange<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  options: BulkChangeOptions<Filter>,
): Promise<BulkChangeResult<Count>> {
  const checked = checkOptions(declaration, options)
  const { principal } = checked
  const { schema = 'leasehold', limit, dryRun = false, signal } = options
  const uncounted = await newRecord(db, declaration, schema, { ...options, ...checked })
  const scope = { schema, ...uncounted }
  const counted = await countMatching(db, declaration, scope, signal)
  const matched = Math.min(counted?.matched ?? 0, limit ?? Infinity)
  const atStart: ChangeRecord<Filter> = { ...uncounted, matched, counts: counted?.counts ?? {} }
  const unchanged = resultOf(declaration, schema, atStart, atStart, counted !== undefined)
  if (counted === undefined) return { ...unchanged, dryRun }
  if (dryRun) return previewOf(db, declaration, scope, atStart, unchanged)
  const changed = new Set<string>()
  if (matched > 0) return runBatches(db, declaration, atStart, changed, { ...options, schema, principal })
  return { ...unchanged, skipped: await explainSkipped(db, declaration, scope, atStart, { changed }) }
}

/** Changes rows that were written, or finished, before this moment. */
async function newRecord<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  schema: string,
  { filter, reason, rate, limit }: Pick<BulkChangeOptions<Filter>, 'rate' | 'limit'> & Checked<Filter>,
): Promise<ChangeRecord<Filter>> {
  const startedAtSeconds = await readClock(db)
  return {
    changeId: randomUUID(),
    reason,
    filter,
    namedIds: filter.ids?.length ?? null,
    rate: rate ?? null,
    limit: limit ?? null,
    matched: 0,
    changed: 0,
    counts: {},
    lastBatch: null,
    firstId: null,
    lastId: null,
    startedAtSeconds,
    lastIds: await findLastIds(db, declaration, schema),
    position: null,
    nextDueSeconds: startedAtSeconds,
    lastDueSeconds: null,
    finishedAtSeconds: null,
  }
}

/**
 * Records that a change was asked for, without counting or changing anything, and returns its id: `resumeBulkChange` then
 * runs it, in this process or in any other.
 */
export async function requestBulkChange<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  options: Omit<BulkChangeOptions<Filter>, 'dryRun' | keyof FollowOptions> & Pick<FollowOptions, 'schema'>,
  { tenant, keyId }: Pick<NonNullable<ChangeRecord<unknown>['background']>, 'tenant' | 'keyId'>,
): Promise<string> {
  const checked = checkOptions(declaration, options)
  const { schema = 'leasehold' } = options
  const record = await newRecord(db, declaration, schema, { ...options, ...checked })
  const details = { ...record, background: { by: checked.principal, tenant, keyId, isCounted: false } }
  await audit(db, schema, {
    principal: checked.principal,
    action: declaration.action,
    target: targetOf(declaration, record.filter),
    details,
  })
  return record.changeId
}

function targetOf<Filter extends RowFilter>(
  { target }: Pick<BulkChange<Filter>, 'target'>,
  filter: Filter,
): string | null {
  return (filter.ids?.length === 1 ? filter.ids[0] : target?.(filter)) ?? null
}

/** What a dry run adds to the counts: what would be changed of other tables, and which of the named rows would not be changed. */
async function previewOf<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  scope: Chosen<Filter>,
  record: ChangeRecord<Filter>,
  counted: BulkChangeResult<Count>,
): Promise<BulkChangeResult<Count>> {
  const { previewCounts } = declaration
  const dryRun = true
  if (previewCounts === undefined && record.namedIds === null) return { ...counted, dryRun }
  const matching = await findAllMatching(db, declaration, scope)
  const ids = matching.ids.slice(0, record.limit ?? undefined)
  const preview = await previewCounts?.(db, scope.schema, ids)
  return {
    ...counted,
    dryRun,
    counts: { ...counted.counts, ...preview },
    skipped: await explainSkipped(db, declaration, scope, record, { changed: new Set(ids), matching }),
  }
}

/** Continues a change that was stopped or killed: the same rows at the same rate, for the same reason. */
export async function resumeBulkChange<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  changeId: string,
  options: ResumeOptions,
): Promise<BulkChangeResult<Count>> {
  const { schema = 'leasehold' } = options
  const principal = checkPrincipal(options.principal, verbOf(declaration))
  const { record, changedIds } = await readRecord(db, declaration, schema, changeId)
  if (record.background !== undefined && options.inBackground !== true)
    // It may be limited to a tenant, and its filter need not say so.
    throw invalid('resume', changeId, 'The HTTP API runs this change, and continues it by itself.')
  if (record.background?.isCounted === false) {
    const scope = { schema, ...record }
    const counted = await countMatching(db, declaration, scope, options.signal)
    if (counted === undefined) return resultOf(declaration, schema, record, record, false)
    const matched = Math.min(counted.matched, record.limit ?? Infinity)
    const background = { ...record.background, isCounted: true }
    const found = { ...record, matched, counts: counted.counts, background }
    return runBatches(db, declaration, found, new Set(changedIds), { ...options, schema, principal })
  }
  if (declaration.dueColumn === undefined) {
    // The wait after the last batch may have been cut short.
    await pause((record.nextDueSeconds - (await readClock(db))) * 1_000, options.signal)
  }
  return runBatches(db, declaration, record, new Set(changedIds), { ...options, schema, principal })
}

interface RunOptions extends FollowOptions, Pick<ResumeOptions, 'beforeBatch'> {
  readonly schema: string
  readonly principal: string
}

/** `changedIds`: which of the rows that were named by their ids were changed before; those of each batch are added. */
async function runBatches<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  atStart: ChangeRecord<Filter>,
  changedIds: Set<string>,
  options: RunOptions,
): Promise<BulkChangeResult<Count>> {
  const { onProgress, schema } = options
  let record = atStart
  while (record.finishedAtSeconds === null && options.signal?.aborted !== true) {
    await options.beforeBatch?.()
    const { after, waitMs } = await retryConflicts(async () =>
      db.transaction(async (tx) => runBatch(tx, declaration, record, options)),
    )
    const { changed, matched } = after
    const madeProgress = changed > record.changed
    record = after
    for (const id of after.lastBatch?.ids ?? []) changedIds.add(id)
    if (madeProgress) await onProgress?.({ changeId: record.changeId, matched, changed })
    // No transaction is open here: a change that waits for its rate holds no lock.
    if (record.finishedAtSeconds === null) await pause(waitMs, options.signal)
  }
  const finished = record.finishedAtSeconds !== null
  const { filter, startedAtSeconds, lastIds, limit } = record
  const scope = { schema, filter, startedAtSeconds, lastIds }
  // Beyond the limit there may be rows that match; without one, all that match were changed.
  const beyondLimit = record.namedIds !== null && record.changed === limit
  const matching = beyondLimit ? await findAllMatching(db, declaration, scope) : undefined
  return {
    ...resultOf(declaration, schema, record, atStart, finished),
    skipped: await explainSkipped(db, declaration, scope, record, {
      changed: changedIds,
      matching,
      finished,
    }),
  }
}

/** One transaction: the next rows, their audit entry, and the wake-up of the workers. */
async function runBatch<Filter extends RowFilter, Count extends string>(
  tx: Queryable,
  declaration: BulkChange<Filter, Count>,
  record: ChangeRecord<Filter>,
  { schema, principal }: RunOptions,
): Promise<{ readonly after: ChangeRecord<Filter>; readonly waitMs: number }> {
  const { filter, rate, limit, reason, startedAtSeconds, lastIds, nextDueSeconds } = record
  const bucketScans = bucketScansOf(declaration, filter, lastIds)
  const position = record.position ?? { bucketScan: 0, ...BEFORE_FIRST }
  const bucketScan = bucketScans[position.bucketScan]
  if (bucketScan === undefined) {
    // The table was empty.
    const after = { ...record, finishedAtSeconds: await readClock(tx) }
    if (record.background !== undefined) {
      await requireLatest(tx, declaration, schema, record)
      const details = auditDetails(after, { isFirst: false })
      await audit(tx, schema, { principal, action: declaration.action, target: null, details })
    }
    return { after, waitMs: 0 }
  }
  await requireLatest(tx, declaration, schema, record)
  const room = Math.min(rowsPerBatch(declaration, rate), limit === null ? Infinity : limit - record.changed)
  const rows = await changeBatch(
    tx,
    declaration,
    { schema, filter, startedAtSeconds, ...bucketScan },
    { after: position, room, by: { principal, reason }, rate, nextDueSeconds },
  )
  const { ids } = rows
  const changed = record.changed + ids.length
  const extraCounts =
    ids.length === 0
      ? {}
      : await declaration.afterBatch?.(tx, {
          schema,
          bucket: bucketScan.bucket,
          ids,
          lastDueSeconds: rows.lastDueSeconds,
        })
  const next = nextPosition(position, rows.next, bucketScans.length)
  const isFinished = changed === limit || next === undefined
  const sorted = ids.toSorted(byNumber)
  const [first, last] = [sorted[0], sorted.at(-1)]
  const paced = paceAfter(declaration, record, rows)
  const after: ChangeRecord<Filter> = {
    ...record,
    ...paced,
    changed,
    counts: addCounts(record.counts, extraCounts ?? {}),
    lastBatch:
      first === undefined || last === undefined
        ? null
        : {
            count: ids.length,
            firstId: first,
            lastId: last,
            ...(record.namedIds === null ? {} : { ids: sorted }),
          },
    firstId: smallest(record.firstId, first),
    lastId: largest(record.lastId, last),
    position: next ?? position,
    finishedAtSeconds: isFinished ? rows.nowSeconds : null,
  }
  // A scan without a match is not recorded, unless it is the end of a change that has changed something.
  if (ids.length > 0 || (isFinished && (changed > 0 || record.background !== undefined))) {
    const details = auditDetails(after, { isFirst: record.changed === 0 && record.background === undefined })
    const target = targetOf(declaration, filter)
    await audit(tx, schema, { principal, action: declaration.action, target, details })
  }
  if (ids.length > 0) await wake(tx, schema, declaration.wakes)
  const waitMs =
    declaration.dueColumn === undefined ? Math.max(0, (paced.nextDueSeconds - rows.nowSeconds) * 1_000) : 0
  return { after, waitMs: ids.length === 0 ? 0 : waitMs }
}

const BEFORE_FIRST: ScanPosition = { at: '-infinity', id: '-9223372036854775808' }

function bucketScansOf<Filter extends RowFilter>(
  declaration: Pick<BulkChange<Filter>, 'scans'>,
  filter: Filter,
  lastIds: LastIds,
): readonly BucketScan<Filter>[] {
  return declaration.scans(filter).flatMap((scan) => lastIds.map((lastId) => ({ scan, ...lastId })))
}

function nextPosition(
  { bucketScan }: Position,
  next: ScanPosition | undefined,
  bucketScans: number,
): Position | undefined {
  if (next !== undefined) return { bucketScan, ...next }
  return bucketScan + 1 < bucketScans ? { bucketScan: bucketScan + 1, ...BEFORE_FIRST } : undefined
}

/** Rows without a due time are paced by waiting between batches: then a batch is what the rate allows in a second. */
function rowsPerBatch({ batchSize = DEFAULT_BATCH_SIZE, dueColumn }: Pacing, rate: number | null): number {
  if (rate === null || dueColumn !== undefined) return batchSize
  return Math.max(1, Math.min(batchSize, Math.floor(rate)))
}

type Pacing = { readonly batchSize?: number; readonly dueColumn?: string }

/** A change that was delayed does not catch up in a burst: times in the past are not given to rows. */
function paceAfter(
  { dueColumn }: Pacing,
  {
    rate,
    nextDueSeconds,
    lastDueSeconds,
  }: Pick<ChangeRecord<unknown>, 'rate' | 'nextDueSeconds' | 'lastDueSeconds'>,
  rows: Pick<ChangedRows, 'ids' | 'nowSeconds' | 'lastDueSeconds'>,
): { readonly nextDueSeconds: number; readonly lastDueSeconds: number | null } {
  if (rows.ids.length === 0) return { nextDueSeconds, lastDueSeconds }
  if (dueColumn === undefined) {
    return {
      nextDueSeconds:
        rate === null ? nextDueSeconds : Math.max(nextDueSeconds, rows.nowSeconds) + rows.ids.length / rate,
      lastDueSeconds: null,
    }
  }
  const due = rows.lastDueSeconds ?? nextDueSeconds
  return {
    nextDueSeconds: rate === null ? nextDueSeconds : due + 1 / rate,
    lastDueSeconds: Math.max(due, lastDueSeconds ?? due),
  }
}

interface Chosen<Filter> {
  readonly schema: string
  readonly filter: Filter
  readonly startedAtSeconds: number
  readonly lastIds: LastIds
}

/** Counts all rows that match; undefined when it was stopped. */
async function countMatching<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  { schema, filter, startedAtSeconds, lastIds }: Chosen<Filter>,
  signal: AbortSignal | undefined,
): Promise<{ readonly matched: number; readonly counts: Readonly<Record<string, number>> } | undefined> {
  let matched = 0
  let counts: Readonly<Record<string, number>> = {}
  for (const bucketScan of bucketScansOf(declaration, filter, lastIds)) {
    let after: ScanPosition | undefined = BEFORE_FIRST
    while (after !== undefined) {
      if (signal?.aborted === true) return undefined
      const counted: Awaited<ReturnType<typeof countBatch>> = await countBatch(
        db,
        declaration,
        { schema, filter, startedAtSeconds, ...bucketScan },
        after,
      )
      matched += counted.matched
      counts = addCounts(counts, counted.counts)
      after = counted.next
    }
  }
  return { matched, counts }
}

function resultOf<Filter extends RowFilter, Count extends string>(
  declaration: BulkChange<Filter, Count>,
  schema: string,
  record: ChangeRecord<Filter>,
  atStart: ChangeRecord<Filter>,
  finished: boolean,
): BulkChangeResult<Count> {
  const none = Object.fromEntries(Object.keys(declaration.counts(schema)).map((name) => [name, 0]))
  const changed = record.changed - atStart.changed
  return {
    changeId: record.changed === 0 ? undefined : record.changeId,
    dryRun: false,
    matched: record.matched,
    changed,
    changedBefore: atStart.changed,
    // The names are those that the application declares.
    counts: { ...none, ...record.counts } as Record<Count, number>,
    firstId: record.firstId ?? undefined,
    lastId: record.lastId ?? undefined,
    lastDueAt:
      changed === 0 || record.lastDueSeconds === null ? undefined : new Date(record.lastDueSeconds * 1_000),
    finished,
    skipped: [],
  }
}

type Checked<Filter> = ChangedBy & { readonly filter: Filter }

const OPTIONS = [
  'ids',
  'filter',
  'dryRun',
  'rate',
  'limit',
  'principal',
  'reason',
  'schema',
  'signal',
  'onProgress',
] as const satisfies readonly (keyof BulkChangeOptions<RowFilter>)[]

function checkOptions<Filter extends RowFilter, Count extends string>(
  declaration: BulkChange<Filter, Count>,
  options: BulkChangeOptions<Filter>,
): Checked<Filter> {
  checkFields(options, OPTIONS)
  const { ids, rate, limit, dryRun = false } = options
  // A filter has no required fields.
  const given = { ...options.filter, ...(ids === undefined ? {} : { ids }) } as Filter
  if (isEmptyFilter(given)) {
    throw invalid(
      'filter',
      given,
      `Give ids, or at least one condition that the ${declaration.rows} have to satisfy.`,
    )
  }
  declaration.checkFilter(given)
  const filter = given.ids === undefined ? given : { ...given, ids: normaliseIds(given.ids) }
  checkRate(rate, declaration.rows)
  checkLimit(limit)
  if (dryRun) return { filter, principal: '', reason: '' }
  const reason = checkReason(options.reason)
  return { filter, reason, principal: checkPrincipal(options.principal, verbOf(declaration)) }
}

/** Whether a filter has no condition: such a filter would mean every row. */
export function isEmptyFilter(filter: RowFilter): boolean {
  return Object.values(filter).every((value) => value === undefined)
}

interface Matching {
  /** The rows that match and would be changed without a limit, in the order of the change. */
  readonly ids: readonly string[]
  /** Those that match, but are ruled out by one of the others. */
  readonly ruledOut: readonly string[]
}

async function findAllMatching<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  { schema, filter, startedAtSeconds, lastIds }: Chosen<Filter>,
): Promise<Matching> {
  const ids: string[] = []
  const ruledOut: string[] = []
  for (const bucketScan of bucketScansOf(declaration, filter, lastIds)) {
    let after: ScanPosition | undefined = BEFORE_FIRST
    while (after !== undefined) {
      const scope = { schema, filter, startedAtSeconds, ...bucketScan }
      const found: Awaited<ReturnType<typeof findMatching>> = await findMatching(
        db,
        declaration,
        scope,
        after,
      )
      ids.push(...found.ids)
      ruledOut.push(...found.ruledOut)
      after = found.next
    }
  }
  return { ids, ruledOut }
}

interface WhatWasDone {
  readonly changed: ReadonlySet<string>
  /** Undefined: everything that matched was changed. */
  readonly matching?: Matching | undefined
  /** False: what was not reached will be changed when the change is resumed. */
  readonly finished?: boolean
}

/** Why rows that were named by their ids were not changed. */
async function explainSkipped<Filter extends RowFilter, Count extends string>(
  db: Database,
  declaration: BulkChange<Filter, Count>,
  { schema, filter }: Chosen<Filter>,
  { limit }: ChangeRecord<Filter>,
  { changed, matching, finished = true }: WhatWasDone,
): Promise<readonly Skipped[]> {
  const { ids: named, ...conditions } = filter
  if (named === undefined) return []
  const matches = new Set(matching?.ids)
  const ruledOut = new Set(matching?.ruledOut)
  return explainUnchanged({
    ids: named,
    changed,
    row: declaration.row,
    find: async (ids) => declaration.findNamed(db, schema, { ...filter, ids }),
    otherwise: (id) => {
      if (!finished) return undefined
      if (ruledOut.has(id)) return declaration.onePer?.why
      if (matches.has(id)) return `the limit of ${limit} was reached`
      return isEmptyFilter(conditions)
        ? 'somebody else has changed it in the meantime'
        : 'it does not satisfy the other conditions'
    },
  })
}

/**
 * Repeats a batch that was rolled back. Workers settle rows in the order in which they finish them, against which a
 * batch can deadlock; and a row that a unique index forbids may be inserted at the same moment, which the next try sees.
 */
async function retryConflicts<Done>(attempt: () => Promise<Done>): Promise<Done> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await attempt()
    } catch (error) {
      if (!(isLockConflict(error) || isUniqueViolation(error)) || tries === MAX_TRIES) throw error
    }
  }
}

async function wake(tx: Queryable, schema: string, workers: readonly string[]): Promise<void> {
  if (workers.length === 0) return
  const calls = workers.map((worker) => `${quoteQualified(schema, 'wake')}('${worker}')`)
  await tx.query({ text: `select ${calls.join(', ')}` })
}

async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  if (ms <= 0) return
  // The signal ends the wait; the loop over the batches sees it.
  const options = signal === undefined ? {} : { signal }
  await delay(Math.min(ms, MAX_TIMER_MS), undefined, options).catch(() => undefined)
}

function addCounts(
  counts: Readonly<Record<string, number>>,
  more: Readonly<Record<string, number | undefined>>,
): Readonly<Record<string, number>> {
  const sum: Record<string, number> = { ...counts }
  for (const [name, count = 0] of Object.entries(more)) sum[name] = (sum[name] ?? 0) + count
  return sum
}

function byNumber(a: string, b: string): number {
  return BigInt(a) < BigInt(b) ? -1 : 1
}

function smallest(a: string | null, b: string | undefined): string | null {
  return [a, b].flatMap((id) => id ?? []).toSorted(byNumber)[0] ?? null
}

function largest(a: string | null, b: string | undefined): string | null {
  return (
    [a, b]
      .flatMap((id) => id ?? [])
      .toSorted(byNumber)
      .at(-1) ?? null
  )
}
