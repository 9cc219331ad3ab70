import type { EmbeddedServer } from '../embedded/index.ts'
import { createHealth, databaseAnswers, migrationsCurrent, type Logger } from '../observe/index.ts'
import { migrate } from '../postgres/index.ts'
import { startServer, type HttpServer } from '../server/index.ts'
import { withoutPassword, type LoadedSettings } from '../settings/index.ts'
import { openDatabasePart } from './database-part.ts'
import { startEmbeddedPart } from './embedded-part.ts'
import { ended, unlessEnded, watchEnding, type Ending } from './ending.ts'
import { abandonParts, stopParts, type Part } from './parts.ts'
import { reachDatabase } from './reach-database.ts'
import { whereToLook } from './where-to-look.ts'

export interface UpOptions {
  readonly loaded: LoadedSettings
  readonly version: string
  readonly log: Logger
  readonly print: (text: string) => void
}

const HTTP_STOP_WITHIN_MS = 5_000

/** Everything in one process, until it is told to end. Returns the exit code. */
export async function up(options: UpOptions): Promise<number> {
  const { log } = options
  const parts: Part[] = []
  const ending = watchEnding({
    exitNow(code) {
      abandonParts(parts, log)
      process.exit(code)
    },
    onLateError: (error) => log.error({ err: error }, 'an error while stopping'),
  })
  try {
    const failure = await run(options, parts, ending)
    const clean = await stopParts(parts, log)
    if (failure !== undefined) throw failure.error
    log.info('stopped')
    return clean ? 0 : 1
  } finally {
    ending.close()
  }
}

/** Starts the parts and waits for the end; what made it fail is returned, because the parts are stopped first. */
async function run(
  options: UpOptions,
  parts: Part[],
  ending: Ending,
): Promise<{ readonly error: unknown } | undefined> {
  const { log } = options
  try {
    options.print(await start(options, parts, ending))
  } catch (error) {
    // Told to end while starting: what the start came to is no news any more.
    if (!ending.signal.aborted) return { error }
  }
  const reason = await ended(ending)
  if ('error' in reason) return reason
  log.info({ signal: reason.signal }, 'stopping')
  return undefined
}

/** The order of the parts: each needs the ones before it, and they are stopped the other way round. */
async function start(options: UpOptions, parts: Part[], ending: Ending): Promise<string> {
  const { version, log } = options
  const { settings, sources } = options.loaded
  const { url, embedded } = await chooseDatabase(options, parts, ending)
  const shownUrl = withoutPassword(url)

  const { db, part } = openDatabasePart(url, log)
  parts.push(part)
  const source = sources.databaseUrl.name
  const reach = { db, shownUrl, source, waitMs: settings.databaseWaitMs, log, signal: ending.signal }
  await unlessEnded(ending, reachDatabase(reach))
  const migrated = await unlessEnded(ending, migrate(db, { schema: settings.schema }))
  log.info({ schema: settings.schema, ...migrated }, 'the schema is ready')

  const http = await startHttp(options, [databaseAnswers(db), migrationsCurrent(db, settings.schema)])
  parts.push({ name: 'HTTP', stopWithinMs: HTTP_STOP_WITHIN_MS, stop: async () => http.stop() })

  return whereToLook({
    version,
    httpUrl: http.url,
    takenPort: settings.port === 0 || http.port === settings.port ? undefined : settings.port,
    // The embedded server listens on this machine only, and a person needs its password to look into it.
    databaseUrl: embedded?.url ?? shownUrl,
    embedded,
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

async function startHttp(
  { loaded: { settings, sources }, version, log }: UpOptions,
  checks: Parameters<typeof createHealth>[0],
): Promise<HttpServer> {
  return startServer({
    version,
    health: createHealth(checks),
    host: settings.host,
    port: settings.port,
    whenTaken: sources.port.kind === 'default' ? 'anyPort' : 'refuse',
    onError: (error) => log.error({ err: error }, 'a request failed'),
  })
}
