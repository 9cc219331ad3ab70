import { LeaseholdError } from '../errors.ts'
import type { Database } from '../postgres/index.ts'
import { isMissingTable } from '../postgres/failures.ts'
import type { Run } from './run.ts'
import { withRunningDatabase } from './running-database.ts'

type WithTables = <Result>(
  run: Pick<Run, 'loaded' | 'log'>,
  act: (db: Database, schema: string) => Promise<Result>,
) => Promise<Result>

export const withOutbox = withTablesOf('outbox')
export const withSync = withTablesOf('sync')
export const withWebhooks = withTablesOf('webhooks')

/** Does something with the tables of one of the parts; a database without them is told what to do about it. */
function withTablesOf(part: string): WithTables {
  return async ({ loaded, log }, act) => {
    const { schema } = loaded.settings
    try {
      return await withRunningDatabase(loaded, log, async (db) => act(db, schema))
    } catch (error) {
      if (!isMissingTable(error)) throw error
      throw new LeaseholdError('SETTING_INVALID', `The schema ${schema} has no ${part} yet.`, {
        remedy: 'Run `leasehold migrate`, or name another schema with --schema.',
        cause: error,
      })
    }
  }
}
