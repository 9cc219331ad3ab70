/**
 * Why a row is not running: the reasons in the row and in the database (`src/lease/explain.ts`), together with what the
 * registry says of the worker processes that would run it. Each application adds what only it knows.
 */
import { duration, relative } from '../figures.ts'
import { hasCode, LeaseholdError, messageOf } from '../errors.ts'
import { bucketsOf } from '../lease/backlog.ts'
import {
  at,
  because,
  commandLine,
  type Explanation,
  LOCK_TIMEOUT_SQL,
  lockOnRow,
  lockOnTable,
  oldSnapshot,
  OLD_SNAPSHOT_MS,
  readRow,
  readRowBefore,
  reason,
  type Reason,
  type ReasonCode,
  reasonsInRow,
  type RowAddress,
  type RowDescription,
  type RowFacts,
  type RowState,
  shellArgument,
  stateOf,
  suspicion,
  tryClaim,
  unknownLock,
  updateSql,
} from '../lease/explain.ts'
import { inspectTable, schemaMismatch, type TableShape } from '../lease/inspect.ts'
import { idValues } from '../lease/lease.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { type TableSql, tableSql } from '../lease/table-sql.ts'
import type { Database } from '../postgres/database.ts'
import { isLockConflict } from '../postgres/failures.ts'
import { quoteIdentifier } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { listWorkersOfTable, type WorkerOfTable } from '../worker/registry/registry.ts'
import { readStoredSettings, type StoredSettings } from '../worker/registry/stored-settings.ts'
import type { WorkerSettings } from '../worker/settings.ts'
import type { WorkDeclaration } from '../worker/work-declaration.ts'
import { type BrowseOptions, readOnly } from './browse.ts'
import { appliedSettings, renewalsOf } from './renewals.ts'
import { checkDuration, invalid } from './request-checks.ts'

export type { Explanation, Reason, ReasonCode, RowState } from '../lease/explain.ts'

export interface ExplainOptions extends BrowseOptions {
  /**
   * Also claim the row, if nothing else keeps it from running, in a transaction that is rolled back: that shows whether a
   * constraint or a trigger refuses it. Everything else is only read. Default false.
   */
  readonly tryClaim?: boolean | undefined
  /** From which age on a snapshot is mentioned, in milliseconds. Default 60,000. */
  readonly oldSnapshotMs?: number | undefined
}

/** A table, and who processes it. */
export interface ExplainedTable {
  readonly table: LeaseTable
  /** The names of its workers, as the registry has them. None: no process was ever started with one. */
  readonly workers: readonly string[]
  /** Which buckets each of them serves. Default: all. */
  readonly buckets?: readonly (number | 'all')[]
  readonly description: RowDescription
}

/** A table, and those who are declared to process it. */
export function explainedBy(
  table: LeaseTable,
  workers: readonly Pick<WorkDeclaration<never>, 'name' | 'bucket'>[],
): Omit<ExplainedTable, 'description'> {
  return {
    table,
    workers: workers.map(({ name }) => name),
    buckets: workers.map(({ bucket = 0 }) => bucket),
  }
}

/** What an application adds to an explanation. */
export interface Addition {
  readonly reasons: readonly Reason[]
  /** Reasons that it explains better. */
  readonly replaces?: readonly ReasonCode[]
}

export interface RowInTable {
  readonly row: RowFacts
  readonly state: RowState
  /** The processes that run a worker of the table. */
  readonly serving: readonly WorkerOfTable[]
}

/** These do not keep a row from running. */
const HARMLESS: ReadonlySet<ReasonCode> = new Set(['oldSnapshot', 'suspect', 'leaseExpired'])

/**
 * Explains one row. `find` says where it is, or fails if there is none; `add` says what only the application knows. All of
 * it is read in one snapshot.
 */
export async function explainRowOf(
  db: Database,
  given: string,
  explained: ExplainedTable,
  options: ExplainOptions,
  find: (tx: Queryable, t: TableSql) => Promise<RowAddress>,
  add?: (tx: Queryable, found: RowInTable) => Promise<Addition>,
): Promise<Explanation> {
  const { table, description } = explained
  const { oldSnapshotMs = OLD_SNAPSHOT_MS } = options
  checkDuration('oldSnapshotMs', oldSnapshotMs)
  const what = `Explaining the ${description.row}`
  const limits = { what, remedy: 'Allow more time.' }
  const unread = (locked: Reason) =>
    ({ id: given, state: 'unknown', reasons: [locked], found: undefined }) as const
  const read = await readOnly(db, options, limits, async (tx) => {
    await tx.query({ text: LOCK_TIMEOUT_SQL })
    const tableLock = await lockOnTable(tx, table)
    if (tableLock?.isExclusive === true) return unread(tableLock.reason)
    const shape = await shapeOf(tx, table)
    const t = tableSql(table, shape)
    const address = await find(tx, t)
    const row = await readRow(tx, t, description, address)
    if (row === undefined) throw rowNotFound(table, address.id)
    const reading = { tx, t, row, explained, options: { ...options, oldSnapshotMs } }
    const { state, reasons } = await allReasons(reading, tableLock?.reason, add)
    return { id: row.id, state, reasons, found: { row, shape } }
  }).catch(async (error: unknown) => {
    if (!isLockConflict(error)) throw error
    // It was locked meanwhile, or another table is.
    const tableLock = await readOnly(db, options, limits, async (tx) => lockOnTable(tx, table))
    return unread(tableLock?.reason ?? unknownLock(table))
  })
  const { id, state, reasons, found } = read
  const name = tableName(table)
  const isLocked = reasons.some(({ code }) => code === 'tableLocked')
  const isTried = options.tryClaim === true && !isLocked && (state === 'claimable' || state === 'expired')
  if (!isTried || found === undefined || !found.row.isClaimableNow) return { table: name, id, state, reasons }
  const { isClaimed, refused } = await tryClaim(db, table, found.shape, found.row)
  return { table: name, id, state, reasons: afterTrial(reasons, isClaimed, refused) }
}

function afterTrial(reasons: readonly Reason[], isClaimed: boolean, refused: Reason | undefined): Reason[] {
  if (refused !== undefined) return [refused, ...reasons.filter(({ code }) => code !== 'claimable')]
  return reasons.map((each) =>
    each.code === 'claimable' && isClaimed
      ? { ...each, text: `${each.text} A claim that was rolled back succeeded.` }
      : each,
  )
}

interface Reading {
  readonly tx: Queryable
  readonly t: TableSql
  readonly row: RowFacts
  readonly explained: ExplainedTable
  readonly options: ExplainOptions & { readonly oldSnapshotMs: number }
}

async function allReasons(
  { tx, t, row, explained, options }: Reading,
  tableLocked: Reason | undefined,
  add: ((tx: Queryable, found: RowInTable) => Promise<Addition>) | undefined,
): Promise<{ readonly state: RowState; readonly reasons: readonly Reason[] }> {
  const { table, description } = explained
  const before = await readRowBefore(tx, t, description, row)
  const state = stateOf(row, before)
  const fleet = await readFleet(tx, explained, options.schema ?? 'leasehold', row)
  const notes = { owner: ownerNote(row, fleet), reaper: reaperNote(fleet) }
  const inRow = reasonsInRow(table, row, before, description, notes)
  const found = { row, state, serving: fleet.serving }
  const own = merged(inRow, await add?.(tx, found))
  if (state === 'finished') return { state, reasons: own }
  const unreaped = withoutReaper(row, fleet, explained, options.schema)
  if (state === 'leased') return { state, reasons: [...own, ...unreaped] }
  const locks = [...(await lockOnRow(tx, row)), ...(tableLocked === undefined ? [] : [tableLocked])]
  if (state === 'expired' && !row.isClaimableNow) return { state, reasons: [...own, ...locks, ...unreaped] }
  const reasons = [
    ...own,
    ...locks,
    ...(await suspicion(tx, t, row)),
    ...withoutWorker(row, fleet, explained, options),
  ]
  const isKept = reasons.some(
    ({ code, by }) => !HARMLESS.has(code) || (code === 'suspect' && by !== undefined),
  )
  if (state === 'waiting') return { state, reasons }
  const snapshot = await oldSnapshot(tx, row.now, options.oldSnapshotMs)
  const free = isKept ? [] : [nothingKeeps(row, fleet, explained, options)]
  return { state, reasons: [...free, ...reasons, ...snapshot] }
}

function merged(reasons: readonly Reason[], addition: Addition | undefined): Reason[] {
  const { reasons: added = [], replaces = [] } = addition ?? {}
  return [...added, ...reasons.filter(({ code }) => !replaces.includes(code))]
}

/** What a command needs besides, where the tables are not in the default schema. */
export function schemaFlag(schema = 'leasehold'): string {
  return schema === 'leasehold' ? '' : ` --schema ${shellArgument(schema)}`
}

// The worker processes.

/** What the registry says of the processes that have to do with the table. */
interface Fleet {
  readonly all: readonly WorkerOfTable[]
  /** Alive, with a worker of the table. */
  readonly serving: readonly WorkerOfTable[]
  /** Alive, and takes back its expired leases. */
  readonly reaping: readonly WorkerOfTable[]
  /** By the name of the worker. */
  readonly stored: ReadonlyMap<string, StoredSettings>
  readonly names: readonly string[]
}

async function readFleet(
  tx: Queryable,
  { table, workers: names }: ExplainedTable,
  schema: string,
  { owner }: RowFacts,
): Promise<Fleet> {
  const name = tableName(table)
  const all = await listWorkersOfTable(tx, schema, { names, table: name, owner })
  const stored = new Map<string, StoredSettings>()
  for (const each of names) {
    const settings = await readStoredSettings(tx, schema, each)
    if (settings !== undefined) stored.set(each, settings)
  }
  const alive = all.filter(({ state }) => state === 'alive')
  return {
    all,
    serving: alive.filter(({ roles }) => names.some((each) => roles.includes(each))),
    reaping: alive.filter(({ reaps }) => reaps.includes(name)),
    stored,
    names,
  }
}

/** The settings that a process applies to its workers of the table, as far as they can work. */
function settingsOf(process: WorkerOfTable, { names, stored }: Fleet): WorkerSettings[] {
  return names.flatMap((name) => appliedSettings(process.declared[name], stored.get(name)?.value) ?? [])
}

/** Whether the owner of the lease is alive, and when it renewed the lease last. */
function ownerNote(row: RowFacts, fleet: Fleet): string {
  const { owner, now } = row
  if (owner === null) return ''
  const process = fleet.all.find(({ id }) => id === owner)
  if (process === undefined) return `${owner} is not in the registry of worker processes`
  const seen = `last seen ${relative(process.lastSeenAt, now)}`
  const since = (moment: Date | null, word = 'since'): string =>
    moment === null ? '' : ` ${word} ${at(moment, now)}`
  const notes: Readonly<Record<WorkerOfTable['state'], string>> = {
    alive: `it is alive, ${seen}${renewalNote(row, process, fleet)}`,
    missing: `it has been missing${since(process.missingSince)}, ${seen}, and its leases are taken back unless it returns`,
    dead: `it has been dead${since(process.diedAt)}, and a reaper takes its leases back`,
    stopped: `it stopped${since(process.stoppedAt, 'at')}`,
  }
  return notes[process.state]
}

function renewalNote(
  { until, heldSince, now, isLeaseOver }: RowFacts,
  process: WorkerOfTable,
  fleet: Fleet,
): string {
  const [settings] = settingsOf(process, fleet)
  if (settings === undefined || until === null || isLeaseOver) return ''
  const { renewedAt, renewals, isLate } = renewalsOf({ since: heldSince, until, now }, settings)
  const lease = `, with leases of ${duration(settings.leaseMs)}`
  const late = isLate ? `; a renewal is late, they come every ${duration(settings.heartbeatMs)}` : ''
  if (renewals === 0) return `${lease}, and has not renewed it yet${late}`
  if (renewedAt === null) return lease
  const ago = duration(now.getTime() - renewedAt.getTime())
  if (renewals === null) return `${lease}, and claimed or renewed it ${ago} ago${late}`
  const times = renewals === 1 ? 'about once' : `about ${renewals} times`
  return `${lease}, and renewed it ${times}, last ${ago} ago${late}`
}

function reaperNote(fleet: Fleet): string {
  const intervals = fleet.reaping.flatMap((process) =>
    settingsOf(process, fleet).map(({ reaperIntervalMs }) => reaperIntervalMs),
  )
  if (intervals.length === 0) return ''
  return `a reaper looks for expired leases every ${duration(Math.min(...intervals))}`
}

function withoutReaper(
  { owner, isLeaseOver }: RowFacts,
  fleet: Fleet,
  { table }: ExplainedTable,
  schema: string | undefined,
): Reason[] {
  const holder = fleet.all.find(({ id }) => id === owner)
  if (fleet.reaping.length > 0 || (!isLeaseOver && holder?.state === 'alive')) return []
  return [
    reason(
      'noReaper',
      `No worker process that is alive takes back the expired leases of ${tableName(table)}.`,
      {
        command: `leasehold work --only reaper${schemaFlag(schema)}`,
      },
    ),
  ]
}

/** Why no worker claims the row, although it may be claimable. */
function withoutWorker(
  row: RowFacts,
  fleet: Fleet,
  explained: ExplainedTable,
  { schema = 'leasehold' }: ExplainOptions,
): Reason[] {
  return [
    ...notServed(row, fleet, explained, schema),
    ...paused(row, fleet, schema),
    ...otherBucket(row, explained),
    ...otherGroup(row, fleet, explained),
  ]
}

const MAX_NAMED = 5

function ids(processes: readonly WorkerOfTable[], describe = ({ id }: WorkerOfTable): string => id): string {
  const named = processes.slice(0, MAX_NAMED).map(describe)
  const more = processes.length - named.length
  return [...named, ...(more > 0 ? [`${more} more`] : [])].join(', ')
}

function inFlightOf({ id, inFlight }: WorkerOfTable): string {
  return `${id} with ${inFlight} in flight`
}

function notServed({ now }: RowFacts, fleet: Fleet, { table }: ExplainedTable, schema: string): Reason[] {
  const { serving, names, all } = fleet
  if (serving.length > 0) return []
  const runs = names.length === 0 ? `a worker of ${tableName(table)}` : `the worker ${names.join(' or ')}`
  const command =
    names.length === 0 ? undefined : `leasehold work --only ${names.join(',')}${schemaFlag(schema)}`
  const ran = all.filter(({ declared }) => names.some((name) => name in declared))
  // A process that stops keeps its rows in flight, and gives up the names of its workers.
  const stopping = ran.filter(({ state, inFlight }) => state === 'alive' && inFlight > 0)
  if (stopping.length > 0) {
    return [
      reason(
        'workersStopping',
        `Every worker process that ran ${runs} is stopping: ${ids(stopping, inFlightOf)}.`,
        {
          by: stopping[0]?.id,
          command,
        },
      ),
    ]
  }
  const last = ran.find(({ state }) => state !== 'alive')
  const since = last?.stoppedAt ?? last?.diedAt ?? last?.missingSince ?? last?.lastSeenAt
  const before =
    last === undefined || since === undefined
      ? ''
      : `; the last one, ${last.id}, has been ${last.state} since ${at(since, now)}`
  return [
    reason('noWorker', `No worker process that is alive runs ${runs}${before}.`, {
      since,
      by: last?.id,
      command,
    }),
  ]
}

const PAUSED_BECAUSE = {
  operator: 'by itself',
  saturated: 'because its target accepts nothing at the moment',
  unhealthy: 'because the probe of its target fails',
  stopping: 'because it stops',
} as const

/** Paused by the settings, which all follow; or each by itself. */
function paused({ now }: RowFacts, { serving, names, stored }: Fleet, schema: string): Reason[] {
  const bySettings = [...stored].filter(([, { value }]) => value.paused === true)
  if (names.length > 0 && bySettings.length === names.length) {
    return bySettings.map(([name, { changedAt, changedBy }]) =>
      reason(
        'workersPaused',
        `The settings pause the worker ${name}; ${changedBy} changed them at ${at(changedAt, now)}.`,
        {
          since: changedAt,
          by: changedBy,
          command: `leasehold settings resume ${name}${schemaFlag(schema)}`,
        },
      ),
    )
  }
  const pauses = serving.map((process) => {
    const own = names.filter((name) => process.roles.includes(name))
    const found = own.map((name) => process.paused.find(({ worker }) => worker === name))
    return { process, pause: found.every((pause) => pause !== undefined) ? found[0] : undefined }
  })
  const [first] = pauses
  if (first?.pause === undefined || pauses.some(({ pause }) => pause === undefined)) return []
  const { worker, reason: why, error = null } = first.pause
  const since = new Date(Math.min(...pauses.map(({ pause }) => Date.parse(pause?.since ?? ''))))
  const others = pauses.length === 1 ? '' : ` (and ${pauses.length - 1} more)`
  return [
    reason(
      'workersPaused',
      `The worker ${worker} is paused in every process that runs it: in ${first.process.id}${others} since ${at(since, now)}, ${PAUSED_BECAUSE[why]}${because(error)}`,
      { since, by: first.process.id },
    ),
  ]
}

function otherBucket({ bucket }: RowFacts, { buckets, workers, table }: ExplainedTable): Reason[] {
  if (bucket === undefined || buckets === undefined || buckets.length === 0) return []
  if (buckets.some((each) => each === 'all' || each === bucket)) return []
  return [
    reason(
      'bucketNotServed',
      `It is in bucket ${bucket} of ${tableName(table)}, and the worker ${workers.join(' or ')} serves only bucket ${buckets.join(', ')}: declare the worker with \`bucket: 'all'\`.`,
    ),
  ]
}

function otherGroup(
  { group }: RowFacts,
  { serving, names }: Fleet,
  { description: { group: word = 'group' } }: ExplainedTable,
): Reason[] {
  if (group === null || serving.length === 0) return []
  const known = serving.map(({ declared }) => names.flatMap((name) => declared[name]?.groups ?? []))
  // A process that does not tell its groups may have any.
  if (known.some((groups) => groups.length === 0 || groups.includes(group))) return []
  const all = [...new Set(known.flat())].toSorted().slice(0, MAX_NAMED)
  return [
    reason(
      'groupNotServed',
      `No worker process that is alive has the ${word} ${JSON.stringify(group)}: ${ids(serving)} ${serving.length === 1 ? 'has' : 'have'} ${all.join(', ')}.`,
      { by: group },
    ),
  ]
}

/** From then on the row should have been claimed, and a constraint or trigger may refuse it. */
const SUSPICIOUS_AFTER_MS = 10_000

function nothingKeeps(
  row: RowFacts,
  { serving }: Fleet,
  { description }: ExplainedTable,
  { tryClaim: isTried }: ExplainOptions,
): Reason {
  const { now, dueAt } = row
  const waitedMs = dueAt === null ? 0 : now.getTime() - dueAt.getTime()
  const due = dueAt === null ? 'it can be claimed' : `it has been due for ${duration(waitedMs)}`
  const failed = row.attempts === 0 ? '.' : `; the last attempt failed${because(row.lastError)}`
  const processes = serving.length === 1 ? 'the worker process' : `${serving.length} worker processes`
  const by = `${processes} (${ids(serving, inFlightOf)}) will claim it when there is room`
  return reason('claimable', `Nothing keeps it from running: ${due}, and ${by}${failed}`, {
    since: dueAt,
    command:
      waitedMs >= SUSPICIOUS_AFTER_MS && isTried !== true ? description.explain(row, ' --try') : undefined,
  })
}

// Rows of any declared table.

/** Explains a row of a lease table that a worker of your own processes. `id` is its id, as leases name it. */
export async function explainRow(
  db: Database,
  explained: Omit<ExplainedTable, 'description'>,
  id: string,
  options: ExplainOptions = {},
): Promise<Explanation> {
  const { table } = explained
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
  checkRowId(table, id)
  try {
    return await explainRowOf(db, id, { ...explained, description }, options, async (tx, t) => {
      if (t.bucket === undefined) return { id }
      for (const bucket of await bucketsOf(tx, t)) {
        if ((await readRow(tx, t, description, { id, bucket })) !== undefined) return { id, bucket }
      }
      throw rowNotFound(table, id)
    })
  } catch (error) {
    // invalid_text_representation, numeric_value_out_of_range, datetime_field_overflow: no row can have this id.
    if (!hasCode(error, '22P02', '22003', '22007', '22008')) throw error
    throw invalid(
      'id',
      id,
      `Give the ${table.id.join(' and ')} of a row of ${tableName(table)}: ${messageOf(error)}.`,
    )
  }
}

function checkRowId(table: LeaseTable, id: string): void {
  const remedy = `Give the ${table.id.join(' and ')} of a row of ${tableName(table)}.`
  if (typeof id !== 'string' || id === '') throw invalid('id', id, remedy)
  try {
    idValues(table, id)
  } catch {
    throw invalid('id', id, remedy)
  }
}

function rowNotFound(table: LeaseTable, id: string): LeaseholdError {
  return new LeaseholdError('ROW_NOT_FOUND', `No row of ${tableName(table)} has the id ${id}.`, {
    remedy: `Give the ${table.id.join(' and ')} of a row that is there.`,
  })
}

async function shapeOf(tx: Queryable, table: LeaseTable): Promise<TableShape> {
  const inspection = await inspectTable(tx, table)
  if (inspection.found === 'table') return inspection.shape
  const what = inspection.found === 'nothing' ? 'there is no such table' : `it is ${inspection.kind}`
  throw schemaMismatch(table, [{ what, remedy: 'Name a table that exists in the declaration.' }])
}
