import type { Logger } from '../observe/index.ts'
import { migrate, type Migrated } from '../postgres/index.ts'
import type { LoadedSettings } from '../config/index.ts'
import { withRunningDatabase } from './running-database.ts'

export interface MigrateCommand {
  readonly loaded: LoadedSettings
  readonly log: Logger
  readonly print: (text: string) => void
}

/** Applies the migrations to the given database, or to the embedded one that runs in the directory. */
export async function runMigrate({ loaded, log, print }: MigrateCommand): Promise<number> {
  const { schema } = loaded.settings
  print(await withRunningDatabase(loaded, log, async (db) => report(await migrate(db, { schema }), schema)))
  return 0
}

function report({ applied, version, ahead }: Migrated, schema: string): string {
  const done = applied.length === 0 ? 'Nothing to apply.' : `Applied ${applied.join(', ')}.`
  const newer =
    ahead.length === 0 ? '' : ` It is ahead of this release, which does not know ${ahead.join(', ')}.`
  return `${done} The schema ${schema} is at version ${version}.${newer}\n`
}
