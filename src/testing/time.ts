/**
 * Time, as far as rows know of it. Tests do not wait for a backoff or for the end of a lease: they move the times in the
 * rows. Statuses, owners and tokens stay as they are, so that every rule of the tables applies as ever.
 */
import { LeaseholdError } from '../errors.ts'
import { idValues, type Lease } from '../lease/lease.ts'
import { openLeaseStore, type LeaseStore } from '../lease/store.ts'
import { canRest, leasedCondition, type LeaseTable, tableName } from '../lease/table.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import { outboxTable } from '../outbox/table.ts'
import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { chunkTable, jobTable } from '../sync/table.ts'
import { webhookTable } from '../webhooks/table.ts'

/** Which rows are meant. */
export interface RowChoice {
  /** The lease table of the rows. Default: all tables of Leasehold's applications. */
  readonly table?: LeaseTable
  /** Only these rows of `table`, named as `Lease.id` names them. Default: all. */
  readonly ids?: readonly string[]
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
}

const CHOICE = namesOf<RowChoice>({ table: true, ids: true, schema: true })

/**
 * Ends leases, as if their workers had died: the rows are processed by the next worker that claims or reaps. Returns how
 * many leases were ended.
 */
export async function expireLeases(db: Queryable, choice: RowChoice = {}): Promise<number> {
  return change(db, 'expireLeases', choice, (table) => {
    const { owner, until } = leaseColumns(table)
    return [`set ${until} = now() - interval '1 second' where ${owner} is not null and ${until} > now()`]
  })
}

/** Makes rows claimable now that wait for a retry or a later time. Returns how many. */
export async function makeDue(db: Queryable, choice: RowChoice = {}): Promise<number> {
  return change(db, 'makeDue', choice, dueNow)
}

/** Makes rows claimable now that have failed and wait for their retry. */
export async function makeRetriesDue(db: Queryable, table: LeaseTable): Promise<number> {
  const column = table.attempts?.column
  if (column === undefined) return 0
  return change(db, 'drain', { table }, (each) =>
    dueNow(each).map((update) => `${update} and ${quote(column)} > 0`),
  )
}

function dueNow(table: LeaseTable): readonly string[] {
  const { owner, until } = leaseColumns(table)
  const waiting = `where (${table.claimable}) and ${owner} is null`
  const column = table.availableAt === undefined ? undefined : quote(table.availableAt)
  return [
    ...(column === undefined ? [] : [`set ${column} = now() ${waiting} and ${column} > now()`]),
    ...(canRest(table) ? [`set ${until} = null ${waiting} and ${until} > now()`] : []),
  ]
}

/**
 * Lets time pass for unfinished rows: retries, scheduled rows and leases are due this much earlier. Returns how many rows
 * were changed.
 */
export async function advance(db: Queryable, ms: number, choice: RowChoice = {}): Promise<number> {
  if (!(Number.isFinite(ms) && ms >= 0)) {
    throw new LeaseholdError('SETTING_INVALID', `advance was called with ${ms}.`, {
      remedy: 'Give a number of milliseconds from 0.',
    })
  }
  return change(db, 'advance', choice, (table) => {
    const { until } = leaseColumns(table)
    const columns = [until, ...(table.availableAt === undefined ? [] : [quote(table.availableAt)])]
    const earlier = columns.map((column) => `${column} = ${column} - ${ms} * interval '1 millisecond'`)
    const leased = leasedCondition(table)
    const unfinished = `(${table.claimable})${leased === undefined ? '' : ` or (${leased})`}`
    return [`set ${earlier.join(', ')} where (${unfinished})`]
  })
}

/** The lease tables of Leasehold's applications. */
export function ownTables(schema: string): readonly LeaseTable[] {
  return [outboxTable({ schema }), webhookTable({ schema }), jobTable({ schema }), chunkTable({ schema })]
}

/** By the name of the table: the worker that `wake` tells that there is something to do. */
const WORKERS: Readonly<Record<string, string>> = {
  outbox: 'outbox',
  webhook_outbox: 'webhooks',
  sync_jobs: 'sync-jobs',
  sync_checkpoints: 'sync',
}

async function change(
  db: Queryable,
  of: string,
  choice: RowChoice,
  updates: (table: LeaseTable) => readonly string[],
): Promise<number> {
  refuseUnknownOptions(of, choice, CHOICE)
  const { table, ids, schema = 'leasehold' } = choice
  if (ids !== undefined && table === undefined) {
    throw new LeaseholdError('SETTING_INVALID', `${of} was called with ids, and without their table.`, {
      remedy: 'Give the table as well: { table: outboxTable(), ids }.',
    })
  }
  let changed = 0
  for (const each of table === undefined ? ownTables(schema) : [table]) {
    const named = ids === undefined ? undefined : namedRows(each, ids)
    let ofTable = 0
    for (const update of updates(each)) {
      const { rowCount } = await db.query({
        text: `update ${target(each)} as r ${update}${named === undefined ? '' : ` and ${named.where}`}`,
        values: named?.values ?? [],
      })
      ofTable += rowCount ?? 0
    }
    changed += ofTable
    const worker = each.schema === schema ? WORKERS[each.name] : undefined
    if (ofTable > 0 && worker !== undefined)
      await db.query({ text: `select ${quoteQualified(schema, 'wake')}($1)`, values: [worker] })
  }
  return changed
}

function target(table: LeaseTable): string {
  return quoteQualified(table.schema, table.name)
}

function leaseColumns({ lease }: LeaseTable): { readonly owner: string; readonly until: string } {
  return { owner: quote(lease.owner), until: quote(lease.until) }
}

function namedRows(
  table: LeaseTable,
  ids: readonly string[],
): { readonly where: string; readonly values: readonly unknown[] } {
  const values = ids.map((id) => idValues(table, id))
  const columns = table.id.map((column) => `r.${quote(column)}::text`)
  const arrays = table.id.map((_, i) => `$${i + 1}::text[]`)
  return {
    where: `(${columns.join(', ')}) in (select * from unnest(${arrays.join(', ')}))`,
    values: table.id.map((_, i) => values.map((each) => each[i])),
  }
}

export interface HoldLeaseOptions {
  readonly table: LeaseTable
  /** The row, as `Lease.id` names it. */
  readonly id: string
  /** The worker id under which the row is held. Default `another-worker`. */
  readonly owner?: string
  /** Default one minute. */
  readonly leaseMs?: number
}

const HOLD_OPTIONS = namesOf<HoldLeaseOptions>({ table: true, id: true, owner: true, leaseMs: true })

/** A row that another worker holds, and the store by which that worker settles or releases it. */
export interface OtherLease {
  readonly lease: Lease
  readonly store: LeaseStore
}

/**
 * Claims a row as another worker. If a worker holds the row, its lease ends first, as it does when that worker is paused or
 * cut off for too long: whatever it writes from then on is fenced off.
 */
export async function holdLease(db: Database, options: HoldLeaseOptions): Promise<OtherLease> {
  refuseUnknownOptions('holdLease', options, HOLD_OPTIONS)
  const { table, id, owner = 'another-worker', leaseMs = 60_000 } = options
  const bucket = await bucketOf(db, table, id)
  const store = await openLeaseStore(db, table, { owner, bucket })
  const claim = async (): Promise<Lease | undefined> =>
    (await store.claim({ limit: 1, leaseMs, ids: [id] })).claimed[0]?.lease
  const choice = { table, ids: [id] }
  await expireLeases(db, choice)
  const free = await claim()
  if (free !== undefined) return { lease: free, store }
  // The row waits for the reaper, or for its retry.
  await store.reap({ ids: [id] })
  await makeDue(db, choice)
  const lease = await claim()
  if (lease !== undefined) return { lease, store }
  throw new LeaseholdError(
    'STATE_CONFLICT',
    `The row ${id} of ${tableName(table)} cannot be claimed: it is finished or dead, it waits for another row of its ordering key, or a transaction has locked it.`,
    { remedy: 'Hold a row that is unfinished and first of its ordering key, and end open transactions.' },
  )
}

/** The bucket of a row, in a table that has buckets. */
async function bucketOf(db: Queryable, table: LeaseTable, id: string): Promise<number> {
  const { where, values } = namedRows(table, [id])
  const bucket = table.bucket === undefined ? '0' : quote(table.bucket)
  const { rows } = await db.query<{ bucket: number }>({
    text: `select ${bucket} as bucket from ${target(table)} as r where ${where}`,
    values,
  })
  const [row] = rows
  if (row !== undefined) return row.bucket
  throw new LeaseholdError('ROW_NOT_FOUND', `${tableName(table)} has no row ${id}.`, {
    remedy: 'Give the id of a row that exists, as `Lease.id` names it.',
  })
}
