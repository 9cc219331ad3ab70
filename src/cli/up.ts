/** `leasehold up`: everything in one process, and without a database URL an embedded PostgreSQL as well. */
import type { LoadedSettings } from '../config/load.ts'
import { LOOPBACK_HOSTS } from '../config/schema.ts'
import { withoutPassword } from '../database-url.ts'
import { stdoutCarriesEvents } from '../outbox/publishers/publishing.ts'
import { migrate } from '../postgres/index.ts'
import type { Run, Terminal } from './command.ts'
import { demoSchema, onceAvailable, secretKeyOf, startDatabase, startEmbeddedServer } from './database.ts'
import { createDemo } from './demo/demo.ts'
import { runProcess, type Startup } from './process.ts'
import { declaredWork } from './work.ts'
import { readyMessage, startWorkerProcess } from './worker-process.ts'

/** Runs until the process is told to stop. Returns the exit code. */
export async function up(run: Run): Promise<number> {
  const isDemo = run.flags['demo'] === true
  const loaded = isDemo ? withDemoSchema(run.loaded) : run.loaded
  return runProcess(run, async (startup) => start({ ...run, loaded }, isDemo, startup))
}

function withDemoSchema(loaded: LoadedSettings): LoadedSettings {
  const { settings } = loaded
  return { ...loaded, settings: { ...settings, schema: demoSchema(settings.schema) } }
}

function isPerson({ isTerminal, width }: Terminal): boolean {
  return stdoutCarriesEvents() ? isTerminal : width !== undefined
}

/** Each part needs the ones before it, so they are stopped in the other order. */
async function start(
  { version, log, loaded, print, terminal }: Run,
  isDemo: boolean,
  startup: Startup,
): Promise<string> {
  const { settings } = loaded
  const { schema } = settings
  // A given database always wins; the directory of the embedded server is then not touched.
  const database =
    settings.databaseUrl === undefined
      ? await startEmbeddedServer(settings.directory, log, startup)
      : { url: settings.databaseUrl }
  const embedded = 'origin' in database ? database : undefined
  const databaseUrl = database.url
  const db = await startDatabase(databaseUrl, loaded, log, startup)
  const migrated = await onceAvailable(loaded, log, startup, async () => migrate(db, { schema }))
  log.info({ schema, ...migrated }, 'the schema is ready')

  const demo = isDemo
    ? createDemo({ schema, declared: settings.workers, secretKey: await secretKeyOf(settings) })
    : undefined
  if (demo !== undefined) {
    startup.add(demo.surroundings)
    await startup.unlessStopping(demo.prepare(db))
  }
  const found = await declaredWork({ ...settings, workers: [...settings.workers, ...(demo?.workers ?? [])] })
  const work = { ...found, reaper: found.workers.length > 0 }
  // The embedded server belongs to whoever is on this machine; any other database has its operators.
  const isLocal = embedded !== undefined && LOOPBACK_HOSTS.includes(settings.host)
  const api = isLocal ? 'withoutKeys' : 'withKeys'
  const options = { loaded, version, log, db, databaseUrl, work, http: 'defaultPort', api } as const
  const running = await startWorkerProcess({ ...options, failsOnPurpose: isDemo }, startup)
  if (demo !== undefined) {
    const { events, http } = running
    const dashboard = http === undefined ? undefined : { url: http.url, asksForKey: !isLocal }
    startup.add(demo.start({ db, events, log, print, dashboard }))
  }

  // A person needs the password of the embedded server to connect to it; a log file must not have it.
  const shownUrl = embedded !== undefined && isPerson(terminal) ? databaseUrl : withoutPassword(databaseUrl)
  return readyMessage(version, running, shownUrl, embedded)
}
