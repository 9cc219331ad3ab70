/** What is in flight, and how much waits, in lease tables: those of the applications, and those of the user. */
import { type HolderOfLease, readHolders, renewalsOf } from '../../operations/renewals.ts'
import { isLeaseholdError, messageOf } from '../../errors.ts'
import { pendingAge, pendingCount } from '../../lease/backlog.ts'
import { type HeldLease, heldLeases } from '../../lease/leases.ts'
import { type LeaseTable, tableName } from '../../lease/table.ts'
import { outboxTable } from '../../outbox/table.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteIdentifier, quoteQualified } from '../../postgres/identifiers.ts'
import { DEFAULT_ROLE_PREFIX, isPermissionDenied } from '../../postgres/permissions.ts'
import { chunkTable, jobTable } from '../../sync/table.ts'
import { webhookTable } from '../../webhooks/table.ts'
import { listWorkers, type WorkerRow } from '../../worker/index.ts'

/** The tables of the applications in this schema. */
export function ownTables(schema: string): readonly LeaseTable[] {
  return [outboxTable({ schema }), webhookTable({ schema }), jobTable({ schema }), chunkTable({ schema })]
}

/** A lease, with what the registry knows of its owner. */
export interface OwnedLease extends HeldLease {
  readonly ownerState: HolderOfLease['ownerState']
  /** How long its leases are, and how often they are renewed. Null: its process, or its worker, is not known. */
  readonly leaseMs: number | null
  readonly heartbeatMs: number | null
  readonly renewedAt: Date | null
  readonly renewals: number | null
  /** Null: the heartbeat interval is not known. */
  readonly isLate: boolean | null
}

export interface Leases {
  /** The clock of the database, after the leases were read. */
  readonly now: Date
  /** Those that end first come first. */
  readonly leases: readonly OwnedLease[]
  /** There are more than were asked for. */
  readonly more: boolean
  /** Tables that could not be read, and why. */
  readonly unreadable: readonly { readonly table: string; readonly problem: string }[]
}

/** The leases of these tables that end first. */
export async function listLeases(
  db: Database,
  schema: string,
  tables: readonly LeaseTable[],
  options: { readonly owner?: string | undefined; readonly limit: number },
): Promise<Leases> {
  const { limit } = options
  const read = await Promise.all(
    tables.map(async (table) =>
      db
        .transaction(async (tx) => heldLeases(tx, table, options))
        .catch((error: unknown) => ({ table, problem: whyUnreadable(error, table) })),
    ),
  )
  const held = read.flatMap((each) => ('leases' in each ? [each] : []))
  const leases = held.flatMap((each) => each.leases).toSorted((a, b) => a.leftMs - b.leftMs)
  const holderOf = await readHolders(db, schema)
  const { rows } = await db.query<{ now: Date }>({ text: 'select clock_timestamp() as now' })
  return {
    now: rows[0]?.now ?? new Date(),
    leases: leases.slice(0, limit).map((lease) => withOwner(lease, holderOf(lease.owner, lease.table))),
    more: leases.length > limit || held.some(({ more }) => more),
    unreadable: read.flatMap((each) =>
      'problem' in each ? [{ table: tableName(each.table), problem: each.problem }] : [],
    ),
  }
}

function withOwner(lease: HeldLease, { ownerState, settings }: HolderOfLease): OwnedLease {
  if (settings === undefined) {
    const unknown = { leaseMs: null, heartbeatMs: null, renewedAt: null, renewals: null, isLate: null }
    return { ...lease, ownerState, ...unknown }
  }
  const { leaseMs, heartbeatMs } = settings
  // The time at which this lease was read.
  const now = new Date(lease.until.getTime() - lease.leftMs)
  return { ...lease, ownerState, leaseMs, heartbeatMs, ...renewalsOf({ ...lease, now }, settings) }
}

export interface TableBacklog {
  /** As `schema.table`. */
  readonly table: string
  /** What could be claimed now; of ordering keys, their heads. Null: see `problem`. */
  readonly pending: number | null
  readonly inFlight: number | null
  /** From this on nobody counted further. */
  readonly countedUpTo: number
  /** How long the oldest row has waited that could be claimed now, 0 if there is none; null: unknown. */
  readonly oldestPendingMs: number | null
  /** The worker processes that process it, and those that take back its expired leases: those that are alive. */
  readonly servedBy: readonly string[]
  readonly reapedBy: readonly string[]
  /** Why it could not be read; null: it could. */
  readonly problem: string | null
}

/** From this on nobody counts further. */
const COUNTED_UP_TO = 10_000

export async function readTables(
  db: Database,
  schema: string,
  tables: readonly LeaseTable[],
): Promise<TableBacklog[]> {
  const workers = (await listWorkers(db, schema)).filter(({ state }) => state === 'alive')
  return Promise.all(tables.map(async (table) => readTable(db, table, workers)))
}

async function readTable(
  db: Database,
  table: LeaseTable,
  workers: readonly WorkerRow[],
): Promise<TableBacklog> {
  const name = tableName(table)
  const idsOf = (which: (worker: WorkerRow) => boolean): string[] => workers.filter(which).map(({ id }) => id)
  const known = {
    table: name,
    countedUpTo: COUNTED_UP_TO,
    servedBy: idsOf(({ serves = {} }) => Object.values(serves).some((served) => served.table === name)),
    reapedBy: idsOf(({ reaps }) => reaps.includes(name)),
  }
  try {
    return await db.transaction(async (tx) => {
      const { pending, leased } = await pendingCount(tx, table, COUNTED_UP_TO)
      const seconds = await pendingAge(table)(tx)
      const oldestPendingMs = seconds === undefined ? null : Math.round(seconds * 1_000)
      return { ...known, pending, inFlight: leased, oldestPendingMs, problem: null }
    })
  } catch (error) {
    return {
      ...known,
      pending: null,
      inFlight: null,
      oldestPendingMs: null,
      problem: whyUnreadable(error, table),
    }
  }
}

/** Requests act as roles of Leasehold, which tables of the user have to be granted to. */
function whyUnreadable(error: unknown, { schema, name }: LeaseTable): string {
  if (!isPermissionDenied(error)) return messageOf(error)
  const cause = isLeaseholdError(error) ? error.cause : error
  const roles = ['reader', 'operator'].map((kind) => `${DEFAULT_ROLE_PREFIX}_${kind}`).join(', ')
  return `${messageOf(cause)}. Run: GRANT USAGE ON SCHEMA ${quoteIdentifier(schema)} TO ${roles}; GRANT SELECT ON ${quoteQualified(schema, name)} TO ${roles};`
}
