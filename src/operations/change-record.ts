/**
 * How far a bulk change is, as its entries in the audit say. Entries are only ever added, and a change may be killed at any
 * time. So each batch adds one entry in its own transaction, with everything that is needed to continue from there. The
 * common change of a few rows is one batch, and therefore one entry.
 */
import { LeaseholdError } from '../errors.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { BulkChange, RowFilter } from './bulk-change.ts'
import type { LastIds, ScanPosition } from './bulk-change-sql.ts'
import { invalid, isUuid } from './request-checks.ts'

/** What an entry in the audit holds. The last entry of a change says how far it is, and whether it is finished. */
export interface ChangeRecord<Filter> {
  /** The same in all entries of the change. */
  readonly changeId: string
  readonly reason: string
  /** The ids that were named are only in the first entry: there may be very many. */
  readonly filter: Filter
  /** How many ids were named; null: the rows were chosen by the other conditions alone. */
  readonly namedIds: number | null
  readonly rate: number | null
  readonly limit: number | null
  readonly matched: number
  /** How many rows were changed so far, this batch included. */
  readonly changed: number
  readonly counts: Readonly<Record<string, number>>
  /** The rows of this entry's own batch; null where the entry only says that the change is finished. */
  readonly lastBatch: {
    readonly count: number
    readonly firstId: string
    readonly lastId: string
    /** All of them, where they were named by their ids. */
    readonly ids?: readonly string[]
  } | null
  /** The smallest and the largest id so far. */
  readonly firstId: string | null
  readonly lastId: string | null
  /** All times are seconds since 1970 by the clock of the database. Rows that were finished later than this do not match. */
  readonly startedAtSeconds: number
  /** The last id of each bucket when the change began: rows that were written later do not match. */
  readonly lastIds: LastIds
  /** Everything up to here is done; null before the first batch. */
  readonly position: Position | null
  /** The next time that is free under the rate, and the last one that was given to a row. */
  readonly nextDueSeconds: number
  readonly lastDueSeconds: number | null
  readonly finishedAtSeconds: number | null
  /** Set where a server runs the change in the background: its first entry says that it was asked for. */
  readonly background?: {
    /** Who asked for it. By this name a key of a tenant sees the entries of others too: that somebody has cancelled it. */
    readonly by: string
    /** The tenant that the caller is limited to. */
    readonly tenant: string | null
    /** The key that it was asked for with. Once that is revoked, the change ends. Null: none, or a login of the user's own. */
    readonly keyId: string | null
    /** False until the rows that match have been counted. */
    readonly isCounted: boolean
  }
  /** Set in the last entry of a change that did not come to its end. */
  readonly ended?: {
    readonly why: 'cancelled' | 'failed'
    /** Who asked for the change; the entry names who ended it. */
    readonly askedBy: string
    readonly error?: string
  }
}

/** `bucketScan` counts the pairs of a scan and a bucket, which are worked off one after the other. */
export interface Position extends ScanPosition {
  readonly bucketScan: number
}

/** What the entry of a batch holds. With the ids that were named in every entry, the audit would grow with their square. */
export function auditDetails<Filter extends RowFilter>(
  record: ChangeRecord<Filter>,
  { isFirst }: { readonly isFirst: boolean },
): object {
  if (isFirst || record.namedIds === null) return record
  return { ...record, filter: { ...record.filter, ids: undefined } }
}

/** A change that is to be resumed, and which rows it has changed, where they were named by their ids. */
export interface RecordToResume<Filter> {
  readonly record: ChangeRecord<Filter>
  readonly changedIds: readonly string[]
}

/** The state of a change, from its last entry in the audit; what it named, from its first. */
export async function readRecord<Filter extends RowFilter, Count extends string>(
  db: Queryable,
  { action, dates }: BulkChange<Filter, Count>,
  schema: string,
  changeId: string,
): Promise<RecordToResume<Filter>> {
  const verb = verbOf({ action })
  const { rows } = isUuid(changeId)
    ? await db.query<{ details: ChangeRecord<Filter> }>({
        text: `select details from ${quoteQualified(schema, 'audit')}
where action = $1 and details ? 'changeId' and details ->> 'changeId' = $2 order by id desc limit 1`,
        values: [action, changeId.toLowerCase()],
      })
    : { rows: [] }
  const record = rows[0]?.details
  if (record === undefined) {
    const remedy = `No ${verb} has this id. The audit has them: select at, principal, details from ${schema}.audit where action = '${action}'.`
    throw invalid('resume', changeId, remedy)
  }
  if (record.finishedAtSeconds !== null) {
    const finishedAt = new Date(record.finishedAtSeconds * 1_000).toISOString()
    throw invalid('resume', changeId, `This ${verb} was finished at ${finishedAt}; start a new one.`)
  }
  const { ids, changedIds } =
    record.namedIds === null
      ? { ids: undefined, changedIds: [] }
      : await readNamedIds(db, schema, { action, changeId: record.changeId })
  const filter = Object.entries(record.filter).map(([name, value]: [string, unknown]) => [
    name,
    dates.some((date) => date === name) && typeof value === 'string' ? new Date(value) : value,
  ])
  // The same fields as were written, with their dates revived.
  const revived = { ...Object.fromEntries(filter), ...(ids === undefined ? {} : { ids }) } as Filter
  return { record: { ...record, filter: revived }, changedIds }
}

/** The ids that a change named, and those of the rows that it has changed, from all of its entries. */
async function readNamedIds(
  db: Queryable,
  schema: string,
  { action, changeId }: { readonly action: string; readonly changeId: string },
): Promise<{ readonly ids: readonly string[]; readonly changedIds: readonly string[] }> {
  const { rows } = await db.query<{ named: readonly string[] | null; changed: readonly string[] | null }>({
    text: `select details -> 'filter' -> 'ids' as named, details -> 'lastBatch' -> 'ids' as changed
from ${quoteQualified(schema, 'audit')} where action = $1 and details ? 'changeId' and details ->> 'changeId' = $2 order by id`,
    values: [action, changeId],
  })
  const ids = rows[0]?.named
  if (ids === undefined || ids === null) {
    const verb = verbOf({ action })
    const remedy = `Its first entry, which has the ids that were named, is no longer in the audit; start a new ${verb}.`
    throw invalid('resume', changeId, remedy)
  }
  return { ids, changedIds: rows.flatMap(({ changed }) => changed ?? []) }
}

/**
 * Lets one process at a time continue a change, and refuses one that another process has continued meanwhile: it would
 * exceed the limit and the rate. The lock ends with the transaction. It is an advisory lock because an operator may add
 * entries to the audit, but not lock them.
 */
export async function requireLatest<Filter extends RowFilter, Count extends string>(
  tx: Queryable,
  { action }: BulkChange<Filter, Count>,
  schema: string,
  { changeId, changed, background }: Pick<ChangeRecord<unknown>, 'changeId' | 'changed' | 'background'>,
): Promise<void> {
  // Until its first entry is written nobody else knows the id.
  if (changed === 0 && background === undefined) return
  await lockChange(tx, changeId)
  const { rows } = await tx.query<{ changed: number; isFinished: boolean }>({
    text: `select (details ->> 'changed')::int as changed, details -> 'finishedAtSeconds' <> 'null' as "isFinished"
from ${quoteQualified(schema, 'audit')}
where action = $1 and details ? 'changeId' and details ->> 'changeId' = $2 order by id desc limit 1`,
    values: [action, changeId],
  })
  const [latest] = rows
  if (latest?.changed === changed && !latest.isFinished) return
  const verb = verbOf({ action })
  throw new LeaseholdError(
    'STATE_CONFLICT',
    latest?.changed === changed
      ? `The ${verb} ${changeId} was cancelled. This process has stopped.`
      : `Another process continues the ${verb} ${changeId}. This one has stopped.`,
  )
}

/** Until the transaction ends, nobody else continues or cancels the change. */
export async function lockChange(tx: Queryable, changeId: string): Promise<void> {
  await tx.query({
    text: 'select pg_advisory_xact_lock(hashtextextended($1, 0))',
    values: [`leasehold change ${changeId}`],
  })
}

/** `outbox.replay` → `replay`, for messages. */
export function verbOf({ action }: { readonly action: string }): string {
  return action.split('.').at(-1) ?? action
}
