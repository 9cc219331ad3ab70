import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/index.ts'
import { isMissingTable } from '../../postgres/failures.ts'
import type { Run } from '../run.ts'
import { withRunningDatabase } from '../running-database.ts'

/** Does something with the sync jobs; a database without their tables is told what to do about it. */
export async function withSync<Result>(
  { loaded, log }: Pick<Run, 'loaded' | 'log'>,
  act: (db: Database, schema: string) => Promise<Result>,
): Promise<Result> {
  const { schema } = loaded.settings
  try {
    return await withRunningDatabase(loaded, log, async (db) => act(db, schema))
  } catch (error) {
    if (!isMissingTable(error)) throw error
    throw new LeaseholdError('SETTING_INVALID', `The schema ${schema} has no sync yet.`, {
      remedy: 'Run `leasehold migrate`, or name another schema with --schema.',
      cause: error,
    })
  }
}
