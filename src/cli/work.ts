import { LeaseholdError } from '../errors.ts'
import { databaseAnswers, migrationsCurrent, type Logger } from '../observe/index.ts'
import type { Database } from '../postgres/index.ts'
import { withoutPassword, type LoadedSettings } from '../config/index.ts'
import { declaredWork } from './built-in-work.ts'
import { chooseWork, type ChosenWork } from './choose-work.ts'
import { openDatabasePart } from './database-part.ts'
import { unlessEnded, type Ending } from './ending.ts'
import { live } from './life.ts'
import type { Part } from './parts.ts'
import { reachDatabase } from './reach-database.ts'
import { serveWork } from './serve-work.ts'
import { whereToLook } from './where-to-look.ts'

export interface WorkOptions {
  readonly loaded: LoadedSettings
  readonly version: string
  readonly log: Logger
  readonly print: (text: string) => void
  /** `--only` */
  readonly only: string | undefined
  /** Not `--no-http`. */
  readonly http: boolean
}

/** A worker process, until it is told to end. The exit code is 1 when rows were left to the reaper. */
export async function work(options: WorkOptions): Promise<number> {
  const { log, print, loaded, only } = options
  const url = givenDatabase(loaded)
  const chosen = chooseWork(await declaredWork(loaded.settings), only)
  return live({ log, print, start: async (parts, ending) => start(options, chosen, url, parts, ending) })
}

async function start(
  options: WorkOptions,
  chosen: ChosenWork,
  url: string,
  parts: Part[],
  ending: Ending,
): Promise<string> {
  const { loaded, version, log } = options
  const { settings, sources } = loaded
  const shownUrl = withoutPassword(url)
  const { db, part } = openDatabasePart(url, log)
  parts.push(part)
  const source = sources.databaseUrl.name
  const reach = { db, shownUrl, source, waitMs: settings.databaseWaitMs, log, signal: ending.signal }
  await unlessEnded(ending, reachDatabase(reach))
  await unlessEnded(ending, refuseOutdated(db, settings.schema))

  const served = await serveWork(
    {
      loaded,
      version,
      log,
      db,
      url,
      work: chosen,
      checks: [databaseAnswers(db), migrationsCurrent(db, settings.schema)],
      http: options.http ? { defaultPort: 'anyFree' } : undefined,
    },
    parts,
    ending,
  )
  return whereToLook({
    version,
    httpUrl: served.http?.url,
    takenPort: undefined,
    databaseUrl: shownUrl,
    embedded: undefined,
    worker: served.runtime?.id,
    roles: served.roles,
  })
}

/** A worker for production does not start a database of its own: what it did there, nobody else would see. */
function givenDatabase({ settings }: LoadedSettings): string {
  if (settings.databaseUrl !== undefined) return settings.databaseUrl
  throw new LeaseholdError('SETTING_INVALID', 'databaseUrl is not set.', {
    remedy: 'Set DATABASE_URL (or --database-url). `leasehold up` runs workers on an embedded PostgreSQL.',
  })
}

/** Many workers start at once, and their account need not own the schema: migrating is a step of its own. */
async function refuseOutdated(db: Database, schema: string): Promise<void> {
  try {
    await migrationsCurrent(db, schema).run()
  } catch (error) {
    throw new LeaseholdError(
      'SETTING_INVALID',
      `The database is not ready for this release: ${reason(error)}.`,
      {
        cause: error,
      },
    )
  }
}

function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
