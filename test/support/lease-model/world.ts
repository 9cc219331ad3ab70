/** Several workers on one table, each with connections of its own, and every lease any of them was ever given. */
import {
  type Claimer,
  createClaimer,
  type Lease,
  type LeaseStore,
  openLeaseStore,
} from '../../../src/lease/index.ts'
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
  /** Claims that keep their place. */
  claimer: Claimer<Row>
  /** Oldest first. A worker here never forgets a lease: what it does with an old one is what a zombie does. */
  readonly leases: Lease[]
}

export interface World {
  readonly table: ModelTable
  /** Does what is nobody's verb: inserts, lets leases run out, looks at the table. */
  readonly admin: Database
  readonly workers: readonly Worker[]
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
      return { db, store, claimer: newClaimer(store), leases: [] }
    }),
  )
  return { table, admin, workers }
}

/** Back to an empty table, so that every history starts from the same. */
export async function resetWorld({ table, admin, workers }: World): Promise<void> {
  await admin.query({ text: `truncate ${table.target} restart identity` })
  for (const worker of workers) {
    worker.leases.length = 0
    worker.claimer = newClaimer(worker.store)
  }
}

/** Its clock ticks once at every look at it, so that which claims keep their place does not depend on the machine. */
function newClaimer(store: LeaseStore<Row, Outcome>): Claimer<Row> {
  let ticks = 0
  return createClaimer(store, { monotonicNow: () => ticks++ })
}
