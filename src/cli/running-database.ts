import { findEmbedded } from '../embedded/index.ts'
import { LeaseholdError } from '../errors.ts'
import type { Logger } from '../observe/index.ts'
import type { Database } from '../postgres/index.ts'
import { withoutPassword, type LoadedSettings } from '../config/index.ts'
import { openDatabasePart } from './database-part.ts'
import { reachDatabase } from './reach-database.ts'

/** Does something with the given database, or with the embedded one that runs in the directory, once it answers. */
export async function withRunningDatabase<Result>(
  { settings, sources }: LoadedSettings,
  log: Logger,
  act: (db: Database) => Promise<Result>,
): Promise<Result> {
  const url = settings.databaseUrl ?? (await runningEmbedded(settings.directory))
  const { db } = openDatabasePart(url, log)
  try {
    const source = settings.databaseUrl === undefined ? settings.directory : sources.databaseUrl.name
    const shownUrl = withoutPassword(url)
    await reachDatabase({ db, shownUrl, source, waitMs: settings.databaseWaitMs, log })
    return await act(db)
  } finally {
    await db.close()
  }
}

async function runningEmbedded(directory: string): Promise<string> {
  const found = await findEmbedded(directory)
  if (found !== undefined) return found.url
  throw new LeaseholdError(
    'SETTING_INVALID',
    `databaseUrl is not set, and no embedded PostgreSQL runs in ${directory}.`,
    { remedy: 'Set DATABASE_URL (or --database-url), or run `leasehold up`, which migrates by itself.' },
  )
}
