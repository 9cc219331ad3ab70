import { findEmbedded } from '../embedded/index.ts'
import { LeaseholdError } from '../errors.ts'
import type { Logger } from '../observe/index.ts'
import { migrate, type Migrated } from '../postgres/index.ts'
import { withoutPassword, type LoadedSettings } from '../settings/index.ts'
import { openDatabasePart } from './database-part.ts'
import { reachDatabase } from './reach-database.ts'

export interface MigrateCommand {
  readonly loaded: LoadedSettings
  readonly log: Logger
  readonly print: (text: string) => void
}

/** Applies the migrations to the given database, or to the embedded one that runs in the directory. */
export async function runMigrate({ loaded, log, print }: MigrateCommand): Promise<number> {
  const { settings, sources } = loaded
  const url = settings.databaseUrl ?? (await runningEmbedded(settings.directory))
  const { db } = openDatabasePart(url, log)
  try {
    const source = settings.databaseUrl === undefined ? settings.directory : sources.databaseUrl.name
    const shownUrl = withoutPassword(url)
    await reachDatabase({ db, shownUrl, source, waitMs: settings.databaseWaitMs, log })
    print(report(await migrate(db, { schema: settings.schema }), settings.schema))
    return 0
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

function report({ applied, version, ahead }: Migrated, schema: string): string {
  const done = applied.length === 0 ? 'Nothing to apply.' : `Applied ${applied.join(', ')}.`
  const newer =
    ahead.length === 0 ? '' : ` It is ahead of this release, which does not know ${ahead.join(', ')}.`
  return `${done} The schema ${schema} is at version ${version}.${newer}\n`
}
