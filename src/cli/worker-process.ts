/** A worker process as `up` and `work` run it: the HTTP server, the metrics, the workers and the reaper. */
import type { LoadedSettings } from '../config/load.ts'
import type { EmbeddedServer } from '../embedded/index.ts'
import { isLeaseholdError } from '../errors.ts'
import { tableName } from '../lease/index.ts'
import {
  type Check,
  claimsRows,
  createHealth,
  databaseAnswers,
  type Health,
  migrationsCurrent,
  reaperRuns,
  workersRun,
} from '../observe/health.ts'
import { type Logger, logEvents } from '../observe/log.ts'
import { workerGauges } from '../observe/worker-gauges.ts'
import { loadOpenTelemetry, observeWithOpenTelemetry } from '../observe/opentelemetry.ts'
import { createMetrics, type Metrics } from '../observe/prometheus.ts'
import { type Database, openDatabase } from '../postgres/index.ts'
import type { Api } from '../server/api/api.ts'
import type { Caller } from '../server/api/route.ts'
import { startServer } from '../server/server.ts'
import { RECONCILE } from '../reconcile/index.ts'
import { Events, type Runtime, startRuntime, type WorkDeclaration } from '../worker/index.ts'
import type { RunState } from '../worker/process.ts'
import { MAX_AFTER_HANDLERS_MS } from '../worker/stop-deadlines.ts'
import { REAPER } from '../worker/work-declaration.ts'
import { POOL_STOP_WITHIN_MS, processWaitMs, secretKeyOf } from './database.ts'
import { counted, duration } from './output.ts'
import type { Part, Startup } from './process.ts'
import { APPLICATION_TABLES } from './status.ts'
import { webhookNetwork } from './webhooks/network.ts'

/** What one process works on. */
export interface ChosenWork {
  readonly workers: readonly WorkDeclaration[]
  readonly reaper: boolean
  /** Everything that is declared: the reaper and the metrics cover all of it, whichever process works on it. */
  readonly declared: readonly WorkDeclaration[]
}

export interface WorkerProcessOptions {
  readonly loaded: LoadedSettings
  readonly version: string
  readonly log: Logger
  /** For checks and metrics. The workers have connections of their own. */
  readonly db: Database
  readonly databaseUrl: string
  readonly work: ChosenWork
  /** Where HTTP listens when no port is set: on 7400 if that is free, or on any free port. */
  readonly http: 'defaultPort' | 'anyFreePort' | 'off'
  /** Serves the dashboard and the HTTP API as well: to everybody on this machine, or to those who have a key. */
  readonly api?: 'withoutKeys' | 'withKeys'
  /** In the demo handlers fail on purpose: of what workers tell, only errors are logged. Default false. */
  readonly failsOnPurpose?: boolean
  /** Further checks of /readyz. */
  readonly checks?: readonly Check[]
  /** The text of /metrics, made from that of this process. */
  readonly allMetrics?: (own: string) => Promise<string>
  /** Only metrics of the process itself: another one reads those of the database. Default false. */
  readonly withoutDatabaseGauges?: boolean
}

export interface WorkerProcess {
  readonly http: Http | undefined
  readonly runtime: Runtime | undefined
  readonly roles: readonly string[]
  readonly events: Events
  readonly metrics: Metrics
  /** The longest that its workers may take to stop, in milliseconds. */
  readonly shutdownTimeoutMs: () => number
}

interface Http {
  readonly url: string
  /** The port that HTTP would have listened on by default, if something else uses it. */
  readonly takenPort: number | undefined
}

const HTTP_STOP_WITHIN_MS = 5_000
const FIRST_REAP_TIMEOUT_MS = 3_000

/** How much longer than the shutdown timeout of its workers a process may take to stop: HTTP and the pool come after them. */
export const SHUTDOWN_OVERHEAD_MS = MAX_AFTER_HANDLERS_MS + HTTP_STOP_WITHIN_MS + POOL_STOP_WITHIN_MS

/**
 * Starts HTTP first and then the workers, so that they are stopped in the other order: while the workers finish, the
 * process still answers that it is alive, and that it is not ready any more.
 */
export async function startWorkerProcess(
  options: WorkerProcessOptions,
  startup: Startup,
): Promise<WorkerProcess> {
  const { loaded, db, work, allMetrics = async (own) => Promise.resolve(own) } = options
  const { schema, timing } = loaded.settings
  const roles = [...work.workers.map(({ name }) => name), ...(work.reaper ? [REAPER] : [])]
  let workers: StartingWorkers | undefined
  const runtimes = (): readonly Runtime[] => workers?.runtimes() ?? []
  const { events, metrics } = await observe(options, runtimes)

  let http: Http | undefined
  if (options.http !== 'off') {
    const workerChecks = [
      workersRun(() => workers?.state() ?? 'starting'),
      ...(work.workers.length === 0 ? [] : [claimsRows(runtimes)]),
      reaperRuns(db, schema, tablesOf(work)),
    ]
    const checks = [
      databaseAnswers(db),
      migrationsCurrent(db, schema),
      ...(roles.length === 0 ? [] : workerChecks),
      ...(options.checks ?? []),
    ]
    const render = async (): Promise<string> => allMetrics(await metrics.render())
    http = await startHttp(options, createHealth(checks), render, startup)
  }
  const shutdownTimeoutMs = (): number => workers?.shutdownTimeoutMs() ?? timing.shutdownTimeoutMs
  const observed = { http, roles, events, metrics, shutdownTimeoutMs }
  if (roles.length === 0) return { ...observed, runtime: undefined }

  workers = startWorkers(options, events, startup.signal)
  startup.add(workers.part)
  const runtime = await startup.unlessStopping(workers.started)
  return { ...observed, runtime }
}

/** Connects the log, the metrics and, if it is installed, OpenTelemetry to one stream of events. */
async function observe(
  options: WorkerProcessOptions,
  runtimes: () => readonly Runtime[],
): Promise<{ readonly events: Events; readonly metrics: Metrics }> {
  const { version, log, db, loaded, work, withoutDatabaseGauges = false } = options
  const events = new Events()
  const everyGauge = workerGauges({
    db,
    schema: loaded.settings.schema,
    tables: work.declared.map(({ table }) => table),
    runtimes,
  })
  const gauges = withoutDatabaseGauges
    ? everyGauge.filter(({ metric }) => metric === 'inFlightRows')
    : everyGauge
  const { failsOnPurpose = false } = options
  logEvents(events, log, failsOnPurpose ? ['failed'] : [])
  // Without a listener the runtime would log them itself.
  if (failsOnPurpose) events.on('failed', () => undefined)
  const metrics = createMetrics(events, { gauges })
  const api = await loadOpenTelemetry()
  if (api !== undefined) observeWithOpenTelemetry(events, api, { version, gauges })
  return { events, metrics }
}

async function startHttp(
  options: WorkerProcessOptions,
  health: Health,
  metrics: () => Promise<string>,
  startup: Startup,
): Promise<Http> {
  const { loaded, version, log, http } = options
  const { settings, sources } = loaded
  const isPortSet = sources.port.kind !== 'default'
  const port = isPortSet || http === 'defaultPort' ? settings.port : 0
  const probes = {
    version,
    health,
    metrics,
    onError: (error: Error) => log.error({ err: error }, 'a request failed'),
  }
  const dashboard =
    options.api === undefined ? undefined : await serveDashboard(options, options.api, startup)
  const server = await startServer({
    ...probes,
    ...(dashboard === undefined ? {} : { dashboard }),
    host: settings.host,
    port,
    // Whoever sends a key must not send it to another program that has taken the port.
    whenTaken: isPortSet || options.api === 'withKeys' ? 'refuse' : 'anyPort',
  })
  startup.add({
    name: 'HTTP',
    stopWithinMs: HTTP_STOP_WITHIN_MS,
    async stop() {
      // Live updates would otherwise keep their connections.
      await dashboard?.stop()
      await server.stop()
    },
  })
  const { url } = server
  log.info({ url }, 'HTTP is listening')
  const { metricsHost, metricsPort } = settings
  if (metricsHost !== undefined) {
    const other = await startServer({ ...probes, host: metricsHost, port: metricsPort, whenTaken: 'refuse' })
    startup.add({
      name: 'HTTP for probes',
      stopWithinMs: HTTP_STOP_WITHIN_MS,
      stop: async () => other.stop(),
    })
    log.info({ url: other.url }, 'HTTP is listening for probes and scrapes')
  }
  return { url, takenPort: port === 0 || server.port === port ? undefined : port }
}

/**
 * Requests of operators do not compete with the workers for connections. One for live updates, one for charts, two for bulk
 * changes, two for each of three callers that use all they may, and two more, so that a fourth is answered.
 */
const API_CONNECTIONS = 12

/** Who is on this machine is not told apart. */
const LOCAL: Caller = { principal: 'local', role: 'admin', tenant: null }

async function serveDashboard(
  { loaded: { settings }, databaseUrl, log, work }: WorkerProcessOptions,
  access: 'withoutKeys' | 'withKeys',
  startup: Startup,
): Promise<Api> {
  const { schema } = settings
  const pool = openDatabase({
    url: databaseUrl,
    maxConnections: API_CONNECTIONS,
    applicationName: 'leasehold api',
  })
  const secretKey = await secretKeyOf(settings)
  const own = new Set(APPLICATION_TABLES.map((name) => `${schema}.${name}`))
  const { instanceName: name, instanceColor: color, portalOrigins } = settings
  // Loaded where it is served, so that other commands start sooner.
  const { createDashboard } = await import('../server/dashboard.ts')
  const dashboard = createDashboard({
    db: pool,
    schema,
    tables: work.declared.filter(({ table }) => !own.has(tableName(table))),
    webhooks: {
      network: webhookNetwork(settings),
      maxPerTenant: settings.webhookEndpointsPerTenant,
      ...(secretKey === undefined ? {} : { secretKey }),
    },
    onError: (error) => log.error({ err: error }, 'a request to the API failed'),
    ...(access === 'withoutKeys' ? { withoutKey: LOCAL } : {}),
    instance: { name, color },
    portalOrigins,
  })
  startup.add({
    name: 'API',
    stopWithinMs: POOL_STOP_WITHIN_MS,
    async stop() {
      // HTTP has stopped it, unless it could not listen.
      await dashboard.stop()
      await pool.close()
    },
  })
  // Where the database is not ready for it, each request is told so.
  dashboard.resumeChanges().catch((error: unknown) => {
    // Its port is taken, or the process has been told to stop.
    if (isLeaseholdError(error, 'DATABASE_CLOSED')) return
    log.warn({ err: error }, 'the HTTP API cannot be used yet')
  })
  return dashboard
}

interface StartingWorkers {
  readonly part: Part
  readonly started: Promise<Runtime>
  readonly state: () => RunState
  /** None before it has started. */
  readonly runtimes: () => readonly Runtime[]
  readonly shutdownTimeoutMs: () => number
}

/**
 * Starts the workers and the reaper. The part is there at once, so that a process that is told to stop while they are
 * still starting waits for them and stops them.
 */
function startWorkers(
  { databaseUrl, loaded, work, log, failsOnPurpose = false }: WorkerProcessOptions,
  events: Events,
  signal: AbortSignal,
): StartingWorkers {
  const { settings } = loaded
  const { workers, reaper, declared } = work
  const { schema, givenTiming, timing, workerId, maxConnections, auditRetentionMs, listenUrl } = settings
  let state: RunState = 'starting'
  let runtime: Runtime | undefined

  async function start(): Promise<Runtime> {
    runtime = await startRuntime({
      databaseUrl,
      schema,
      workers,
      reaper,
      // A process that does not reap needs no privileges on the tables of others.
      reapTables: reaper ? declared : [],
      settings: givenTiming,
      // The embedded server has no pooler before it.
      ...(settings.databaseUrl === undefined || listenUrl === undefined ? {} : { listenUrl }),
      ...(maxConnections === undefined ? {} : { maxConnections }),
      auditRetentionMs,
      events,
      log: failsOnPurpose ? log.child({}, { level: 'error' }) : log,
      migrate: false,
      databaseWaitMs: processWaitMs(loaded),
      signal,
      ...(workerId === undefined ? {} : { id: workerId }),
    })
    // Whoever reads that it is up may ask whether it is ready at once.
    if (reaper) await runtime.untilReaperHasRun(FIRST_REAP_TIMEOUT_MS)
    if (state === 'starting') state = 'running'
    logEachWorker(runtime, 'started')
    return runtime
  }

  /** The log has each worker with its poll interval and its lease duration. A reconciler says so itself (REC-11). */
  function logEachWorker(from: Runtime, message: string): void {
    const { id } = from
    for (const { name, table, role } of workers) {
      if (role === RECONCILE) continue
      const { pollMs, leaseMs, concurrency } = from.worker(name).settings
      log.info({ worker: id, role: name, table: tableName(table), pollMs, leaseMs, concurrency }, message)
    }
    if (reaper) log.info({ worker: id, role: REAPER, intervalMs: timing.reaperIntervalMs }, message)
  }

  function shutdownTimeoutMs(): number {
    const timeouts = workers.map(({ name }) => runtime?.worker(name).settings.shutdownTimeoutMs ?? 0)
    return Math.max(timing.shutdownTimeoutMs, ...timeouts)
  }

  function stopText(): string {
    const inFlight = runtime?.inFlight ?? 0
    if (inFlight === 0) return 'nothing is in flight'
    const busy = workers.flatMap(({ name }) => {
      const worker = runtime?.worker(name)
      return worker === undefined || worker.inFlight === 0 ? [] : [worker.settings.shutdownTimeoutMs]
    })
    return `${counted(inFlight, 'row')} in flight, whose handlers may take up to ${duration(Math.max(...busy))} to finish`
  }

  const started = start()
  return {
    started,
    state: () => state,
    runtimes: () => (runtime === undefined ? [] : [runtime]),
    shutdownTimeoutMs,
    part: {
      name: 'workers',
      ...(workers.length === 0 ? {} : { stopText }),
      get stopWithinMs() {
        return shutdownTimeoutMs() + MAX_AFTER_HANDLERS_MS
      },
      async stop() {
        state = 'stopping'
        // A start that failed is reported to whoever awaits `started`, and there is nothing to stop.
        const ready = await started.catch(() => undefined)
        if (ready === undefined) return { clean: true }
        const { clean } = await ready.stop()
        logEachWorker(ready, clean ? 'stopped' : 'stopped, and left rows to the reaper')
        return { clean }
      },
    },
  }
}

/** The tables that this process works on; of a process that only reaps, those it reaps. */
function tablesOf({ workers, declared }: ChosenWork): string[] {
  const all = workers.length === 0 ? declared : workers
  return [...new Set(all.map(({ table }) => tableName(table)))]
}

const DATA_ORIGINS: Readonly<Record<EmbeddedServer['origin'], string>> = {
  initialised: 'created now',
  started: 'found from an earlier run',
  adopted: 'found; its server was still running and was taken over',
  shared: 'found; another process runs its server',
}

interface ReadyDetails {
  /** How many processes run the workers, if another process supervises them. */
  readonly processes?: string
}

/** The text that is printed once everything runs: the addresses a person needs. */
export function readyMessage(
  version: string,
  { http, runtime, roles, processes }: Pick<WorkerProcess, 'http' | 'runtime' | 'roles'> & ReadyDetails,
  shownUrl: string,
  embedded?: EmbeddedServer,
): string {
  const port = http?.takenPort === undefined ? '' : ` (port ${http.takenPort} was taken)`
  const rows = [
    ['HTTP', http === undefined ? 'off' : `${http.url}${port}`],
    ['Database', shownUrl],
    ...(embedded === undefined ? [] : [['Data', `${embedded.directory} (${DATA_ORIGINS[embedded.origin]})`]]),
    ['Workers', roles.length === 0 ? 'none: leasehold.config declares none' : roles.join(', ')],
    ...(processes === undefined ? [] : [['Processes', processes]]),
    ...(runtime === undefined ? [] : [['Worker id', runtime.id]]),
    ['Stop', 'Ctrl-C'],
  ]
  const body = rows.map(([name = '', text]) => `  ${name.padEnd(11)}${text}`)
  return ['', `Leasehold ${version} is up.`, '', ...body, '', ''].join('\n')
}
