import type { EmbeddedServer } from '../embedded/index.ts'
import { databaseAnswers, migrationsCurrent, type Logger } from '../observe/index.ts'
import { migrate } from '../postgres/index.ts'
import { withoutPassword, type LoadedSettings } from '../config/index.ts'
import { declaredWork } from './built-in-work.ts'
import type { ChosenWork } from './choose-work.ts'
import { demoWork, startDemo } from './demo/part.ts'
import { openDatabasePart } from './database-part.ts'
import { startEmbeddedPart } from './embedded-part.ts'
import { unlessEnded, type Ending } from './ending.ts'
import { live } from './life.ts'
import type { Part } from './parts.ts'
import { reachDatabase } from './reach-database.ts'
import { whereToLook } from './where-to-look.ts'
import { serveWork } from './serve-work.ts'

export interface UpOptions {
  readonly loaded: LoadedSettings
  readonly version: string
  readonly log: Logger
  readonly print: (text: string) => void
  /** Sample traffic, and a line now and then that tells how it goes. */
  readonly demo: boolean
}

/** Everything in one process, until it is told to end. Returns the exit code. */
export async function up(given: UpOptions): Promise<number> {
  const options = given.demo ? { ...given, loaded: inSchemaOfItsOwn(given.loaded) } : given
  const { log, print } = options
  return live({ log, print, start: async (parts, ending) => start(options, parts, ending) })
}

/** The events of the demo are not for the relays of the real outbox, and the other way round. */
function inSchemaOfItsOwn(loaded: LoadedSettings): LoadedSettings {
  const { settings } = loaded
  return { ...loaded, settings: { ...settings, schema: `${settings.schema}_demo`.slice(0, 63) } }
}

/** The order of the parts: each needs the ones before it, and they are stopped the other way round. */
async function start(options: UpOptions, parts: Part[], ending: Ending): Promise<string> {
  const { version, log, loaded } = options
  const { settings, sources } = loaded
  const { url, embedded } = await chooseDatabase(options, parts, ending)
  const shownUrl = withoutPassword(url)

  const { db, part } = openDatabasePart(url, log)
  parts.push(part)
  const source = sources.databaseUrl.name
  const reach = { db, shownUrl, source, waitMs: settings.databaseWaitMs, log, signal: ending.signal }
  await unlessEnded(ending, reachDatabase(reach))
  const migrated = await unlessEnded(ending, migrate(db, { schema: settings.schema }))
  log.info({ schema: settings.schema, ...migrated }, 'the schema is ready')

  const { demo, print } = options
  const declared = await declaredWork(settings)
  const workers = demo ? [...declared, demoWork(settings.schema, settings.workers)] : declared
  const work: ChosenWork = { workers, reaper: workers.length > 0, declared: workers }
  const http = { defaultPort: 'usual' } as const
  const checks = [databaseAnswers(db), migrationsCurrent(db, settings.schema)]
  const served = await serveWork({ loaded, version, log, db, url, work, checks, http }, parts, ending)

  if (demo) {
    const { schema } = settings
    const { events } = served
    parts.push(startDemo({ db, schema, events, log, print }))
  }
  return whereToLook({
    version,
    httpUrl: served.http?.url,
    takenPort: settings.port === 0 || served.http?.port === settings.port ? undefined : settings.port,
    // The embedded server listens on this machine only, and a person needs its password to look into it.
    databaseUrl: embedded?.url ?? shownUrl,
    embedded,
    worker: served.runtime?.id,
    roles: served.roles,
  })
}

/** A database that was given always wins; the embedded server is then not even looked at. */
async function chooseDatabase(
  { loaded: { settings }, log }: UpOptions,
  parts: Part[],
  ending: Ending,
): Promise<{ readonly url: string; readonly embedded: EmbeddedServer | undefined }> {
  if (settings.databaseUrl !== undefined) return { url: settings.databaseUrl, embedded: undefined }
  const starting = startEmbeddedPart(settings.directory, log)
  parts.push(starting.part)
  const embedded = await unlessEnded(ending, starting.started)
  return { url: embedded.url, embedded }
}
