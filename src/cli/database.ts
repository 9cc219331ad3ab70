/**
 * How commands reach the database: the one that is given, or the embedded one in the directory. Waits for a database that
 * is still starting, and turns a refusal into an error that names the setting, the value and the remedy.
 */
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { LoadedSettings, Settings } from '../config/load.ts'
import { withoutPassword } from '../database-url.ts'
import { embeddedSecretKey, type EmbeddedServer, findEmbedded, startEmbedded } from '../embedded/index.ts'
import { embeddedDirectoryOf } from '../embedded/server.ts'
import { LeaseholdError, messageOf } from '../errors.ts'
import type { Logger } from '../observe/log.ts'
import { withCatalogPath } from '../postgres/catalog-path.ts'
import { isMissingTable } from '../postgres/failures.ts'
import {
  type Database,
  type DatabaseEvent,
  isUnavailable,
  openDatabase,
  type Queryable,
  type NeededRole,
} from '../postgres/index.ts'
import { whenAvailable } from '../postgres/waiting.ts'
import { listWorkers } from '../worker/index.ts'
import type { Run } from './command.ts'
import { duration } from './output.ts'
import type { Startup } from './process.ts'

/** For the start, the checks and the metrics (RULE-020-041). The workers have connections of their own. */
const MAX_CONNECTIONS = 2
/** Checks and metrics only read, so nothing else tells them that the server was made read-only and replaced. */
const MAX_CONNECTION_AGE_MS = 60_000

export const POOL_STOP_WITHIN_MS = 10_000

/** The bounds of a fast shutdown and of the immediate one after it, together, and a little more. */
const EMBEDDED_STOP_WITHIN_MS = 50_000

/**
 * The settings with the URL of an embedded server replaced by its directory. Whoever copies that URL into DATABASE_URL
 * means the same server, with its secret key, whether it runs at the moment or not.
 */
export async function recogniseEmbedded(loaded: LoadedSettings): Promise<LoadedSettings> {
  const { settings } = loaded
  if (settings.databaseUrl === undefined) return loaded
  const directory = await embeddedDirectoryOf(settings.databaseUrl, settings.directory)
  if (directory === undefined) return loaded
  return { ...loaded, settings: { ...settings, directory, databaseUrl: undefined } }
}

/** `leasehold url`: prints the URL of the embedded server that runs in the directory. */
export async function printUrl({ loaded, print }: Run): Promise<number> {
  print(`${await runningEmbedded(loaded)}\n`)
  return 0
}

interface PoolOptions {
  readonly queryTimeoutMs?: number
  readonly neededRole?: NeededRole
}

/** The given database, or the embedded one that is given by its URL and runs. Never starts one. */
export async function givenDatabase(loaded: LoadedSettings): Promise<string | undefined> {
  const { settings, sources } = loaded
  if (settings.databaseUrl !== undefined) return settings.databaseUrl
  return sources.databaseUrl.kind === 'default' ? undefined : runningEmbedded(loaded)
}

/** Runs `act` with the given database, or with the embedded one that runs in the directory, once it answers. */
export async function withRunningDatabase<Result>(
  loaded: LoadedSettings,
  log: Logger,
  act: (db: Database) => Promise<Result>,
  options: PoolOptions & {
    /** With the search_path of the role, for SQL of the user. Default: nothing but `pg_catalog` is on it. */
    readonly ownPath?: boolean
  } = {},
): Promise<Result> {
  const { settings, sources } = loaded
  const { ownPath = false, ...poolOptions } = options
  const url = settings.databaseUrl ?? (await runningEmbedded(loaded))
  const source = settings.databaseUrl === undefined ? settings.directory : sources.databaseUrl.name
  const pool = openPool(url, log, poolOptions)
  const db = ownPath ? pool : withCatalogPath(pool)
  try {
    await reachDatabase({ db, shownUrl: withoutPassword(url), source, waitMs: settings.databaseWaitMs, log })
    return await act(db)
  } finally {
    await db.close()
  }
}

async function runningEmbedded({ settings, sources }: LoadedSettings): Promise<string> {
  const { directory, databaseUrl } = settings
  const found = await findEmbedded(directory)
  if (found !== undefined) return found.url
  const { kind, name } = sources.databaseUrl
  if (databaseUrl !== undefined)
    throw new LeaseholdError('SETTING_INVALID', `No embedded PostgreSQL runs in ${directory}.`, {
      remedy: `Start it with \`leasehold up\` and without ${name}, which names another server, or name its directory with --directory.`,
    })
  const given =
    kind === 'default'
      ? `databaseUrl is not set, and no embedded PostgreSQL runs in ${directory}.`
      : `databaseUrl (${name}) is that of the embedded PostgreSQL in ${directory}, which does not run.`
  throw new LeaseholdError('SETTING_INVALID', given, {
    remedy: 'Start it with `leasehold up`, or set DATABASE_URL or --database-url to a server of your own.',
  })
}

export const withRegistry = withTablesOf('worker registry')
/** For rows of a table of the user. */
export const withOwnTable = withTablesOf('worker registry', { ownPath: true })
export const withOutbox = withTablesOf('outbox')
export const withSync = withTablesOf('sync')
export const withWebhooks = withTablesOf('webhooks')

export type WithTables = <Result>(
  run: Pick<Run, 'loaded' | 'log'>,
  act: (db: Database, schema: string) => Promise<Result>,
  /** Of the whole command: a change begins by reading, and whoever is refused there needs more than a reader's role. */
  neededRole?: NeededRole,
) => Promise<Result>

/** As `withRunningDatabase`; where the tables of this part are missing, the error says what to do. */
export function withTablesOf(part: string, options: { readonly ownPath?: boolean } = {}): WithTables {
  return async ({ loaded, log }, act, neededRole) => {
    let { schema } = loaded.settings
    try {
      return await withRunningDatabase(
        loaded,
        log,
        async (db) => {
          schema = await schemaInUse(withCatalogPath(db), loaded, log)
          return act(db, schema)
        },
        { ...options, ...(neededRole === undefined ? {} : { neededRole }) },
      )
    } catch (error) {
      if (!isMissingTable(error)) throw error
      throw new LeaseholdError('SETTING_INVALID', `The schema ${schema} has no ${part} yet.`, {
        remedy: 'Run `leasehold migrate`, or name another schema with --schema.',
        cause: error,
      })
    }
  }
}

/** The demo has its own schema, so that its events and those of the real outbox never mix. */
export function demoSchema(schema: string): string {
  return `${schema}_demo`.slice(0, 63)
}

/** The schema of the settings. If none was chosen, and only the demo runs here, its schema. */
export async function schemaInUse(
  db: Database,
  { settings: { schema }, sources }: LoadedSettings,
  log: Logger,
): Promise<string> {
  if (sources.schema.kind !== 'default') return schema
  const demo = demoSchema(schema)
  if (!(await hasLiveWorkers(db, demo)) || (await hasLiveWorkers(db, schema))) return schema
  log.info(
    `using the schema ${demo}, because only the demo runs here; --schema ${schema} selects the other one`,
  )
  return demo
}

async function hasLiveWorkers(db: Database, schema: string): Promise<boolean> {
  try {
    return (await listWorkers(db, schema)).some(({ state }) => state === 'alive')
  } catch (error) {
    if (isMissingTable(error)) return false
    throw error
  }
}

/** Opens the pool of a process as one of its parts, and returns it once the database answers. */
export async function startDatabase(
  url: string,
  loaded: LoadedSettings,
  log: Logger,
  startup: Startup,
): Promise<Database> {
  const db = openPool(url, log, { neededRole: 'worker' })
  startup.add({ name: 'database pool', stopWithinMs: POOL_STOP_WITHIN_MS, stop: async () => db.close() })
  const reached = reachDatabase({
    db,
    shownUrl: withoutPassword(url),
    source: loaded.sources.databaseUrl.name,
    waitMs: processWaitMs(loaded),
    log,
    signal: startup.signal,
  })
  await startup.unlessStopping(reached)
  return db
}

/** A connection that is lost later is logged; it does not end the process. */
function openPool(url: string, log: Logger, options: PoolOptions = {}): Database {
  const onEvent = (event: DatabaseEvent): void => logEvent(log, event)
  return openDatabase({
    url,
    maxConnections: MAX_CONNECTIONS,
    maxConnectionAgeMs: MAX_CONNECTION_AGE_MS,
    onEvent,
    ...options,
  })
}

function logEvent(log: Logger, event: DatabaseEvent): void {
  switch (event.type) {
    case 'connectionLost':
      log.warn({ err: event.error }, 'lost a database connection')
      break
    case 'queryTimedOut':
      log.warn({ statement: event.text, timeoutMs: event.timeoutMs }, 'a statement took too long')
      break
    case 'preparedStatementsOff':
      log.info('the connection pooler does not support prepared statements: they are turned off')
      break
  }
}

export interface ReachOptions {
  readonly db: Queryable
  /** The URL without its password, and the setting it came from, for messages. */
  readonly shownUrl: string
  readonly source: string
  readonly waitMs: number
  readonly log: Logger
  readonly signal?: AbortSignal | undefined
}

/** Returns once the database answers. A database that is unavailable may still be starting, so it is tried until the wait is over. */
export async function reachDatabase(options: ReachOptions): Promise<void> {
  const { db, waitMs, log, signal } = options
  try {
    await whenAvailable(async () => db.query({ text: 'select 1' }), {
      waitMs,
      signal,
      onWait: (error, leftMs) => logWait(log, error, leftMs),
    })
  } catch (error) {
    if (signal?.aborted === true) throw error
    throw isUnavailable(error) ? unreachable(error, options) : refused(error, options)
  }
}

/** Does what a process has to do with the database before it starts, which may be repeated. */
export async function onceAvailable<Result>(
  { settings, sources }: LoadedSettings,
  log: Logger,
  startup: Startup,
  work: () => Promise<Result>,
): Promise<Result> {
  const waitMs = processWaitMs({ settings, sources })
  const onWait = (error: unknown, leftMs: number): void => logWait(log, error, leftMs)
  return startup.unlessStopping(whenAvailable(work, { waitMs, signal: startup.signal, onWait }))
}

/** A process that runs until it is told to stop waits for its database as long, unless the user has set how long. */
export function processWaitMs({ settings, sources }: Pick<LoadedSettings, 'settings' | 'sources'>): number {
  return sources.databaseWaitMs.kind === 'default' ? Infinity : settings.databaseWaitMs
}

function logWait(log: Logger, error: unknown, leftMs: number): void {
  const until = Number.isFinite(leftMs) ? `waiting up to ${duration(leftMs)} more` : 'waiting until it does'
  log.warn({ reason: reasonOf(error) }, `the database does not answer yet: ${until}`)
}

/** The server answered and refused the connection: a wrong password, an unknown database, TLS. Waiting does not help. */
function refused(error: unknown, { shownUrl, source }: ReachOptions): LeaseholdError {
  return new LeaseholdError(
    'SETTING_INVALID',
    `databaseUrl (${source}) is ${shownUrl}, but the server refuses the connection: ${reasonOf(error)}.`,
    { remedy: 'Check the user, the password, the database and the TLS parameters of the URL.', cause: error },
  )
}

function unreachable(error: unknown, { shownUrl, source, waitMs }: ReachOptions): LeaseholdError {
  return new LeaseholdError(
    'DATABASE_UNAVAILABLE',
    `The database ${shownUrl} (${source}) did not answer within databaseWaitMs = ${waitMs} ms: ${reasonOf(error)}.`,
    {
      remedy: 'Check that PostgreSQL runs there, or wait longer with --database-wait-ms.',
      cause: error,
    },
  )
}

/** The message of the network or of the server, without the advice of our own errors around it. */
function reasonOf(error: unknown): string {
  if (error instanceof LeaseholdError && error.cause !== undefined) return reasonOf(error.cause)
  if (error instanceof AggregateError) return error.errors.map(reasonOf).join('; ')
  return messageOf(error)
}

/**
 * Starts the embedded server as a part of the process. The part is added at once, so that a process that is told to stop
 * while the server is still starting waits for it and stops it.
 */
export async function startEmbeddedServer(
  directory: string,
  log: Logger,
  startup: Startup,
): Promise<EmbeddedServer> {
  let server: EmbeddedServer | undefined
  const started = startEmbedded({ directory, onLog: (line) => log.info(line) }).then(
    (ready) => (server = ready),
  )
  startup.add({
    name: 'embedded PostgreSQL',
    stopWithinMs: EMBEDDED_STOP_WITHIN_MS,
    async stop() {
      // A start that failed is reported below, and there is nothing to stop.
      const ready = await started.catch(() => undefined)
      await ready?.stop()
    },
    abandon: () => stopEmbeddedAtOnce(directory, server),
  })
  return startup.unlessStopping(started)
}

/**
 * Immediate shutdown: no committed data is lost, and the next start recovers. The server is found by the pid file in its
 * data directory, and is only stopped when this process owns it or is just starting it.
 */
function stopEmbeddedAtOnce(directory: string, server: EmbeddedServer | undefined): void {
  const file = join(directory, 'data', 'postmaster.pid')
  if (server?.origin === 'shared' || !existsSync(file)) return
  const [pid = ''] = readFileSync(file, 'utf8').split('\n')
  const isOwn = server === undefined ? parentOf(pid) === process.pid : Number(pid) === server.processId
  if (isOwn && Number(pid) > 1) process.kill(Number(pid), 'SIGQUIT')
}

function parentOf(pid: string): number {
  if (process.platform === 'linux') {
    return Number(/^PPid:\s*(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
  }
  return Number(execFileSync('ps', ['-o', 'ppid=', '-p', pid], { encoding: 'utf8' }))
}

/** The key that encrypts secrets: the setting, or the embedded server's own key. Never shown. */
export async function secretKeyOf({
  secretKey,
  databaseUrl,
  directory,
}: Pick<Settings, 'secretKey' | 'databaseUrl' | 'directory'>): Promise<string | undefined> {
  if (secretKey !== undefined) return secretKey
  return databaseUrl === undefined ? embeddedSecretKey(directory) : undefined
}
