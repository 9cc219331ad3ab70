import { type Database, pipelineIn } from './database.ts'
import type { Result, Statement } from './queryable.ts'

/** Types, expressions and definitions are printed as by default, whatever the role or the database has set. */
const PLAINLY = [
  'set local quote_all_identifiers to off',
  'set local standard_conforming_strings to on',
  'set local extra_float_digits to 1',
  'set local intervalstyle to postgres',
  'set local timezone to UTC',
].join('; ')

/** pg_temp is named last, because otherwise it comes first. */
export const CATALOG_PATH = `set local search_path to pg_catalog, pg_temp; ${PLAINLY}`

/** For statements that print definitions: with no schema on the path, PostgreSQL qualifies every name. */
export const EMPTY_PATH = `set local search_path to ''; ${PLAINLY}`

/**
 * The same database, whose statements find what is named without a schema in `pg_catalog` alone. For whatever an
 * administrator may run: PostgreSQL prefers a function or an operator that fits its arguments better, and whoever may
 * create one in another schema of the path would have it run with the privileges of the caller. The path is set for each
 * transaction, because behind a pooler the next one may run in another session.
 */
export function withCatalogPath(db: Database): Database {
  const transaction: Database['transaction'] = async (work, options) =>
    db.transaction(async (tx) => {
      await tx.query({ text: CATALOG_PATH })
      return work(tx)
    }, options)
  return {
    transaction,
    async query<Row extends object = Record<string, unknown>>(statement: Statement): Promise<Result<Row>> {
      return transaction(async (tx) => tx.query<Row>(statement))
    },
    pipeline: pipelineIn(transaction),
    close: async (options) => db.close(options),
  }
}
