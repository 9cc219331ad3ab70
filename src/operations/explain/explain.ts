/**
 * Why a row is not running, for the rows of every table. The reasons come from the row itself (`row.ts`), from the database
 * (`database.ts`) and from the worker processes (`workers.ts`); an application adds those that only it knows.
 */
import { hasCode, LeaseholdError, messageOf } from '../../errors.ts'
import { bucketsOf } from '../../lease/backlog.ts'
import { inspectTable, schemaMismatch, type TableShape } from '../../lease/inspect.ts'
import { idValues } from '../../lease/lease.ts'
import { type LeaseTable, tableName } from '../../lease/table.ts'
import { type TableSql, tableSql } from '../../lease/table-sql.ts'
import type { Database } from '../../postgres/database.ts'
import { isLockConflict } from '../../postgres/failures.ts'
import { quoteIdentifier } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { WorkerOfTable } from '../../worker/registry/registry.ts'
import type { WorkDeclaration } from '../../worker/work-declaration.ts'
import { type BrowseOptions, readOnly } from '../browse.ts'
import { checkDuration, invalid } from '../request-checks.ts'
import { commandLine, type RowAddress, schemaFlag, shellArgument, updateSql } from '../shown-commands.ts'
import { LOCK_TIMEOUT_SQL, lockOnRow, lockOnTable, oldSnapshot, tryClaim, unknownLock } from './database.ts'
import type { Explanation, Reason, ReasonCode, RowState } from './reasons.ts'
import {
  readRow,
  readRowBefore,
  reasonsInRow,
  type RowDescription,
  type RowFacts,
  stateOf,
  suspicion,
} from './row.ts'
import {
  claimable,
  leaseNotes,
  readFleet,
  withoutReaper,
  withoutWorker,
  type WorkedTable,
} from './workers.ts'

export interface ExplainOptions extends BrowseOptions {
  /**
   * Also claim the row, if nothing else keeps it from running, in a transaction that is rolled back: that shows whether a
   * constraint or a trigger refuses it. Everything else is only read. Default false.
   */
  readonly tryClaim?: boolean | undefined
  /** From which age on a snapshot is mentioned, in milliseconds. Default 60,000. */
  readonly oldSnapshotMs?: number | undefined
}

/** What an application declares of its rows, so that one of them can be explained. */
export interface ExplainedRows<Address extends RowAddress = RowAddress> extends WorkedTable {
  readonly description: RowDescription
  /** Where the row is that was asked for; fails if there is none. Without a bucket, all of them are searched for the id. */
  readonly find: (tx: Queryable) => Promise<Address>
  /** The reasons that only the application knows. They are read in the snapshot in which the row was. */
  readonly reasons?: (tx: Queryable, found: FoundRow, address: Address) => Promise<readonly Reason[]>
  /** Reasons that its own ones, if it has any, say better. */
  readonly replaces?: readonly ReasonCode[]
}

export interface FoundRow {
  readonly row: RowFacts
  readonly state: RowState
  /** The processes that run a worker of the table. */
  readonly serving: readonly WorkerOfTable[]
}

/** From this age on, a snapshot is worth a mention. */
const OLD_SNAPSHOT_MS = 60_000

/** Explains one row, `given` as the operator named it. All of it is read in one snapshot. */
export async function explainOne<Address extends RowAddress>(
  db: Database,
  given: string,
  rows: ExplainedRows<Address>,
  options: ExplainOptions,
): Promise<Explanation> {
  checkDuration('oldSnapshotMs', options.oldSnapshotMs ?? OLD_SNAPSHOT_MS)
  const name = tableName(rows.table)
  const limits = { what: `Explaining the ${rows.description.row}`, remedy: 'Allow more time.' }
  const unread = (locked: Reason): Read => ({
    explanation: { table: name, id: given, state: 'unknown', reasons: [locked] },
  })
  const { explanation, claimableRow } = await readOnly(db, options, limits, async (tx): Promise<Read> => {
    await tx.query({ text: LOCK_TIMEOUT_SQL })
    const tableLock = await lockOnTable(tx, rows.table)
    if (tableLock?.isExclusive === true) return unread(tableLock.reason)
    const shape = await shapeOf(tx, rows.table)
    const t = tableSql(rows.table, shape)
    const address = await rows.find(tx)
    const row = await findRow(tx, t, rows.description, address)
    const { state, reasons } = await allReasons(tx, t, { row, address, rows, options, tableLock })
    const explanation = { table: name, id: row.id, state, reasons }
    const isFree = row.isClaimableNow && state !== 'waiting' && tableLock === undefined
    return isFree ? { explanation, claimableRow: { ...row, shape, reasons } } : { explanation }
  }).catch(async (error: unknown) => {
    if (!isLockConflict(error)) throw error
    // It was locked meanwhile, or another table is.
    const tableLock = await readOnly(db, options, limits, async (tx) => lockOnTable(tx, rows.table))
    return unread(tableLock?.reason ?? unknownLock(rows.table))
  })
  if (options.tryClaim !== true || claimableRow === undefined) return explanation
  return { ...explanation, reasons: await tryClaim(db, rows.table, claimableRow) }
}

interface Read {
  readonly explanation: Explanation
  /** A claim of it can be tried. */
  readonly claimableRow?: Parameters<typeof tryClaim>[2]
}

async function findRow(
  tx: Queryable,
  t: TableSql,
  description: RowDescription,
  { id, bucket }: RowAddress,
): Promise<RowFacts> {
  const buckets = t.bucket === undefined || bucket !== undefined ? [bucket] : await bucketsOf(tx, t)
  for (const each of buckets) {
    const row = await readRow(tx, t, description, { id, bucket: each })
    if (row !== undefined) return row
  }
  throw new LeaseholdError('ROW_NOT_FOUND', `No row of ${tableName(t.table)} has the id ${id}.`, {
    remedy: `Give the ${t.table.id.join(' and ')} of a row that is there.`,
  })
}

interface Examined<Address extends RowAddress> {
  readonly row: RowFacts
  readonly address: Address
  readonly rows: ExplainedRows<Address>
  readonly options: ExplainOptions
  readonly tableLock: { readonly reason: Reason } | undefined
}

async function allReasons<Address extends RowAddress>(
  tx: Queryable,
  t: TableSql,
  { row, address, rows, options, tableLock }: Examined<Address>,
): Promise<Pick<Explanation, 'state' | 'reasons'>> {
  const { table, description, replaces = [] } = rows
  const before = await readRowBefore(tx, t, description, row)
  const state = stateOf(row, before)
  const fleet = await readFleet(tx, rows, options.schema ?? 'leasehold', row)
  const ofApplication = (await rows.reasons?.(tx, { row, state, serving: fleet.serving }, address)) ?? []
  const replaced = new Set(ofApplication.length === 0 ? [] : replaces)
  const inRow = reasonsInRow(table, row, before, description, leaseNotes(row, fleet))
  const own = [...ofApplication, ...inRow.filter(({ code }) => !replaced.has(code))]
  if (state === 'finished') return { state, reasons: own }
  if (state === 'leased') return { state, reasons: [...own, ...withoutReaper(row, fleet)] }
  const locks = [...(await lockOnRow(tx, row)), ...(tableLock === undefined ? [] : [tableLock.reason])]
  if (state === 'expired' && !row.isClaimableNow)
    return { state, reasons: [...own, ...locks, ...withoutReaper(row, fleet)] }
  const suspected = await suspicion(tx, t, row)
  const reasons = [...own, ...locks, ...suspected, ...withoutWorker(row, description, fleet)]
  if (state === 'waiting') return { state, reasons }
  // The next claim takes an expired lease, and a suspect while no other one runs.
  const isKept = reasons.some(({ code, by }) =>
    code === 'suspect' ? by !== undefined : code !== 'leaseExpired',
  )
  const trial = options.tryClaim === true ? undefined : description.explain(row, ' --try')
  const free = isKept ? [] : [claimable(row, fleet, trial)]
  const snapshot = await oldSnapshot(tx, row.now, options.oldSnapshotMs ?? OLD_SNAPSHOT_MS)
  return { state, reasons: [...free, ...reasons, ...snapshot] }
}

async function shapeOf(tx: Queryable, table: LeaseTable): Promise<TableShape> {
  const inspection = await inspectTable(tx, table)
  if (inspection.found === 'table') return inspection.shape
  const what = inspection.found === 'nothing' ? 'there is no such table' : `it is ${inspection.kind}`
  throw schemaMismatch(table, [{ what, remedy: 'Name a table that exists in the declaration.' }])
}

// Rows of any declared table.

/** A table, and those who are declared to process it. */
export function workedBy(
  table: LeaseTable,
  workers: readonly Pick<WorkDeclaration<never>, 'name' | 'bucket'>[],
): WorkedTable {
  return {
    table,
    workers: workers.map(({ name }) => name),
    buckets: workers.map(({ bucket = 0 }) => bucket),
  }
}

/** Explains a row of a lease table that a worker of your own processes. `id` is its id, as leases name it. */
export async function explainRow(
  db: Database,
  worked: WorkedTable,
  id: string,
  options: ExplainOptions = {},
): Promise<Explanation> {
  const { table } = worked
  const { availableAt } = table
  const description: RowDescription = {
    row: 'row',
    explain: (row, flags = '') =>
      commandLine(
        `leasehold lease explain --table ${shellArgument(tableName(table))}`,
        idValues(table, row.id),
        `${schemaFlag(options.schema)}${flags}`,
      ),
    ...(availableAt === undefined
      ? {}
      : { retry: (row) => updateSql(table, row, `${quoteIdentifier(availableAt)} = now()`) }),
  }
  const remedy = `Give the ${table.id.join(' and ')} of a row of ${tableName(table)}`
  if (!isRowIdOf(table, id)) throw invalid('id', id, `${remedy}.`)
  try {
    return await explainOne(db, id, { ...worked, description, find: async () => ({ id }) }, options)
  } catch (error) {
    // invalid_text_representation, numeric_value_out_of_range, datetime_field_overflow: no row can have this id.
    if (!hasCode(error, '22P02', '22003', '22007', '22008')) throw error
    throw invalid('id', id, `${remedy}: ${messageOf(error)}.`)
  }
}

function isRowIdOf(table: LeaseTable, id: string): boolean {
  try {
    return typeof id === 'string' && id !== '' && idValues(table, id).length > 0
  } catch {
    return false
  }
}
