import { type Lease, type LeaseStore, openLeaseStore } from '../../../src/lease/index.ts'
import type { StoreCycle } from '../../../src/lease/store.ts'
import type { Database } from '../../../src/postgres/database.ts'
import type { Queryable, Statement } from '../../../src/postgres/queryable.ts'
import type { Outcome, ModelTable } from './tables.ts'

/** Several workers on one table, each with its own connections, and all leases that they ever had. */

/** One name contains the separator between owner and token, one a quote. */
const OWNERS = ['worker-1', 'worker#2', "worker'3"]

export interface Row {
  readonly attempts: number
}

export interface Worker {
  readonly db: Database
  readonly store: LeaseStore<Row, Outcome>
  cycle: StoreCycle<Row, Outcome>
  /** The clock of its cycle. */
  clock: TickingClock
  /** Oldest first. A worker keeps every lease: with an old one it acts as a zombie. */
  readonly leases: Lease[]
}

export interface World {
  readonly table: ModelTable
  /** For everything that is not a verb: inserts rows, expires leases, reads the table. */
  readonly admin: Database
  readonly workers: readonly Worker[]
  /** Transactions that have inserted rows and are still open, oldest first. */
  readonly late: { readonly commit: () => Promise<string[]> }[]
}

export async function openWorld(
  table: ModelTable,
  admin: Database,
  databases: readonly Database[],
): Promise<World> {
  for (const text of table.create) await admin.query({ text })
  const workers = await Promise.all(
    databases.map(async (db, i): Promise<Worker> => {
      const store = await openLeaseStore<Row, Outcome>(db, table.declaration, {
        owner: OWNERS[i] ?? `worker-${i}`,
      })
      return { db, store, ...newCycle(store), leases: [] }
    }),
  )
  return { table, admin, workers, late: [] }
}

/** Empties the table, so that every history starts in the same state. */
export async function resetWorld({ table, admin, workers, late }: World): Promise<void> {
  for (const { commit } of late.splice(0)) await commit()
  await admin.query({ text: `truncate ${table.target} restart identity` })
  for (const worker of workers) {
    worker.leases.length = 0
    Object.assign(worker, newCycle(worker.store))
  }
}

/** It ticks once whenever it is read, so that which claims scan from the start does not depend on the machine. */
interface TickingClock {
  now: number
  monotonicNow(): number
}

function newCycle(store: LeaseStore<Row, Outcome>): Pick<Worker, 'cycle' | 'clock'> {
  const clock: TickingClock = {
    now: 0,
    monotonicNow: () => (clock.now += 1),
  }
  return { clock, cycle: store.cycle({ clock }) }
}

/** A defect: in the statements with these names, `piece` is replaced. */
export interface Breakage {
  readonly statements: RegExp
  readonly piece: string
  readonly instead: string
}

/** A database that changes the kernel's statements, to prove that the property detects the defect. */
export function breakDatabase(db: Database, breakage: Breakage): Database {
  return {
    ...breakQueryable(db, breakage),
    pipeline: async (statements) => db.pipeline(statements.map((each) => broken(each, breakage))),
    transaction: async (work, options) =>
      db.transaction(async (tx) => work(breakQueryable(tx, breakage)), options),
    close: async () => db.close(),
  }
}

function breakQueryable(db: Queryable, breakage: Breakage): Queryable {
  return { query: async (statement) => db.query(broken(statement, breakage)) }
}

/** Throws if the statement does not contain the piece: then the kernel has changed, and the test must follow. */
function broken(statement: Statement, { statements, piece, instead }: Breakage): Statement {
  if (statement.name === undefined || !statements.test(statement.name)) return statement
  if (!statement.text.includes(piece)) throw new Error(`${statement.name} no longer says: ${piece}`)
  return { ...statement, text: statement.text.replaceAll(piece, instead) }
}
