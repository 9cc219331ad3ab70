/**
 * Distribution with Citus: the tables whose rows have a bucket are spread over the nodes by it, so that every claim and
 * every settlement concerns one shard. docs/decisions/016-citus.md has the reasons.
 */
import { LeaseholdError } from '../errors.ts'
import { readSqlFiles } from '../package-files.ts'
import { quoteIdentifier, quoteQualified } from './identifiers.ts'
import type { Queryable } from './queryable.ts'

/** The table of a distributed schema in which each bucket has a row, on the node that has its other rows. */
export const CITUS_BUCKETS = 'citus_buckets'

/** How many buckets the tables have if none are asked for: a bucket is never divided between nodes. */
export const DEFAULT_CITUS_BUCKETS = 64

/** Whether the tables of Leasehold in this schema are distributed. */
export async function isDistributed(db: Queryable, schema: string): Promise<boolean> {
  const { rows } = await db.query<{ distributed: boolean }>({
    text: 'select to_regclass($1) is not null as distributed',
    values: [quoteQualified(schema, CITUS_BUCKETS)],
  })
  return rows[0]?.distributed === true
}

/** Refuses a database that cannot distribute tables, before anything is changed. */
export async function requireCitus(db: Queryable): Promise<void> {
  const { rows: extensions } = await db.query<{ database: string }>({
    text: `select quote_ident(current_database()) as database
where not exists (select from pg_extension where extname = 'citus')`,
  })
  const [without] = extensions
  if (without !== undefined)
    throw refused(
      `The database ${without.database} does not have the extension citus.`,
      "Install Citus on every node, set shared_preload_libraries = 'citus', run CREATE EXTENSION citus in this database on every node, and add the nodes with citus_add_node(); or migrate without --citus.",
    )
  const { rows } = await db.query<{ coordinator: boolean; listed: boolean; nodes: number }>({
    text: `select
  (select groupid from pg_dist_local_group) = 0 as coordinator,
  exists (select from pg_dist_node where groupid = 0) as listed,
  (select count(*)::int from pg_dist_node where isactive and shouldhaveshards) as nodes`,
  })
  const { coordinator = false, listed = false, nodes = 0 } = rows[0] ?? {}
  if (!coordinator)
    throw refused('This database is a worker node of Citus.', 'Give the URL of the coordinator.')
  if (!listed)
    throw refused(
      'The coordinator is not among the nodes of Citus, and would have no copy of the webhook endpoints.',
      "Run SELECT citus_set_coordinator_host('<the name by which the other nodes reach it>').",
    )
  if (nodes === 0)
    throw refused('Citus has no node that takes shards.', "Add one: SELECT citus_add_node('<host>', <port>).")
}

/** Distributes the tables, in the transaction of the caller. Returns false if they are already. */
export async function distribute(tx: Queryable, schema: string): Promise<boolean> {
  if (await isDistributed(tx, schema)) return false
  const { rows } = await tx.query<{ unfinished: boolean }>({
    text: `select ${quoteQualified(schema, 'has_rows_of_previous_buckets')}() as unfinished`,
  })
  if (rows[0]?.unfinished === true)
    throw new LeaseholdError(
      'SETTING_INVALID',
      'The tables were not distributed: rows of ordering keys are unfinished that were written before the number of buckets was raised.',
      {
        remedy: `Let the workers finish them, and repeat the command. Whether there are any: select ${quoteQualified(schema, 'has_rows_of_previous_buckets')}().`,
      },
    )
  await tx.query({ text: `set local search_path to ${quoteIdentifier(schema)}, pg_temp` })
  await tx.query({ text: (await readSqlFiles())['citus/distribute.sql'] ?? '' })
  return true
}

function refused(message: string, remedy: string): LeaseholdError {
  return new LeaseholdError('SETTING_INVALID', message, { remedy: `Nothing was changed. ${remedy}` })
}
