import { distribute } from '../../src/postgres/citus.ts'
import type { Database } from '../../src/postgres/database.ts'
import { migrate } from '../../src/postgres/migrate.ts'

/** A database on the coordinator of a Citus that the tests may use. They drop the schema leasehold in it. */
export const CITUS_URL = process.env['LEASEHOLD_TEST_CITUS_URL']

/**
 * Makes the tables what `leasehold migrate --citus` makes of them, on a PostgreSQL without Citus: the same functions,
 * triggers and statements, with all rows on one server.
 */
export async function distributeWithoutCitus(db: Database, buckets: number): Promise<void> {
  await migrate(db, { buckets })
  await db.query({
    text: `
create function leasehold.create_distributed_table(regclass, text, colocate_with text) returns void language sql as '';
create function leasehold.create_reference_table(regclass) returns void language sql as '';
create function leasehold.create_distributed_function(regprocedure) returns void language sql as ''`,
  })
  await db.transaction(async (tx) => distribute(tx, 'leasehold'))
}

/** Distributes the tables with Citus, in an empty schema. */
export async function distributeWithCitus(db: Database, buckets: number): Promise<void> {
  await db.query({
    text: `set client_min_messages to warning;
drop schema if exists leasehold cascade;
drop table if exists public.payments, public.effects`,
  })
  await migrate(db, { citus: true, buckets })
}

interface CitusPlan {
  readonly 'Distributed Query'?: { readonly Job: { readonly 'Task Count': number } }
  readonly Plans?: readonly CitusPlan[]
}

/** How many tasks Citus divides each part of a statement into. A statement that it routes as a whole has one part. */
export function taskCounts(plan: CitusPlan): number[] {
  const own = plan['Distributed Query']?.Job['Task Count']
  return [...(own === undefined ? [] : [own]), ...(plan.Plans ?? []).flatMap(taskCounts)]
}
