/** Several workers on one table, each with connections of its own, and every lease any of them was ever given. */
import { ClaimCursor } from '../../../src/lease/claim-cursor.ts'
import { type Lease, type LeaseStore, openLeaseStore } from '../../../src/lease/index.ts'
import type { Database } from '../../../src/postgres/database.ts'
import type { Outcome, ModelTable } from './tables.ts'

/** One has the mark between owner and token in its name, one a quote. */
const OWNERS = ['worker-1', 'worker#2', "worker'3"]

export interface Row {
  readonly attempts: number
}

export interface Worker {
  readonly db: Database
  readonly store: LeaseStore<Row, Outcome>
  cursor: ClaimCursor<Row>
  /** Oldest first. A worker here never forgets a lease: what it does with an old one is what a zombie does. */
  readonly leases: Lease[]
}

export interface World {
  readonly table: ModelTable
  /** Does what is nobody's verb: inserts, lets leases run out, looks at the table. */
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
      return { db, store, cursor: newCursor(store), leases: [] }
    }),
  )
  return { table, admin, workers, late: [] }
}

/** Back to an empty table, so that every history starts from the same. */
export async function resetWorld({ table, admin, workers, late }: World): Promise<void> {
  for (const { commit } of late.splice(0)) await commit()
  await admin.query({ text: `truncate ${table.target} restart identity` })
  for (const worker of workers) {
    worker.leases.length = 0
    worker.cursor = newCursor(worker.store)
  }
}

/** Its clock ticks once whenever it is read, so that which claims scan from the start does not depend on the machine. */
function newCursor(store: LeaseStore<Row, Outcome>): ClaimCursor<Row> {
  let ticks = 0
  return new ClaimCursor(store, { monotonicNow: () => ticks++ })
}
