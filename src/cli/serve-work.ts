import { isReaperAlive, reaperSomewhere, workersRun, type Check, type Logger } from '../observe/index.ts'
import type { Database } from '../postgres/index.ts'
import type { Events, Runtime } from '../worker/index.ts'
import type { HttpServer } from '../server/index.ts'
import { REAPER, type LoadedSettings } from '../config/index.ts'
import type { ChosenWork } from './choose-work.ts'
import { unlessEnded, type Ending } from './ending.ts'
import { startHttpPart, type HttpOptions } from './http-part.ts'
import { observeProcess } from './observation.ts'
import type { Part } from './parts.ts'
import { startWorkersPart, type StartingWorkers } from './workers-part.ts'

export interface ServeOptions {
  readonly loaded: LoadedSettings
  readonly version: string
  readonly log: Logger
  /** For checks and metrics; the workers have connections of their own. */
  readonly db: Database
  readonly url: string
  readonly work: ChosenWork
  readonly checks: readonly Check[]
  readonly http: Pick<HttpOptions, 'defaultPort'> | undefined
}

export interface Served {
  readonly http: HttpServer | undefined
  readonly runtime: Runtime | undefined
  readonly roles: readonly string[]
  readonly events: Events
}

/**
 * HTTP first and then the workers: while these finish what they have in hand, the process still answers that it lives,
 * and that it is not ready any more.
 */
export async function serveWork(options: ServeOptions, parts: Part[], ending: Ending): Promise<Served> {
  const { loaded, version, log, db, url, work, checks } = options
  const { schema } = loaded.settings
  let working: StartingWorkers | undefined
  const inFlight = (): number => working?.inFlight() ?? 0
  const observed = { db, schema, declared: work.declared, version, log, inFlight }
  const { events, metrics } = await observeProcess(observed)
  const roles = [...work.workers.map(({ name }) => name), ...(work.reaper ? [REAPER] : [])]

  let http: HttpServer | undefined
  if (options.http !== undefined) {
    const ofWork =
      roles.length === 0
        ? []
        : [workersRun(() => working?.state() ?? 'starting'), reaperSomewhere(db, schema)]
    const started = await startHttpPart({
      loaded,
      version,
      log,
      checks: [...checks, ...ofWork],
      metrics: async () => metrics.render(),
      defaultPort: options.http.defaultPort,
    })
    parts.push(started.part)
    http = started.http
  }
  if (roles.length === 0) return { http, runtime: undefined, roles, events }

  working = startWorkersPart({ databaseUrl: url, settings: loaded.settings, work, events, log })
  parts.push(working.part)
  const runtime = await unlessEnded(ending, working.started)
  if (!work.reaper) await reportMissingReaper(db, schema, log)
  return { http, runtime, roles, events }
}

/** RULE-020-020: loudly, at the start; /readyz says it as long as it is so. */
async function reportMissingReaper(db: Database, schema: string, log: Logger): Promise<void> {
  const alive = await isReaperAlive(db, schema).catch((error: unknown) => {
    log.warn({ err: error }, 'could not find out whether a reaper is alive')
    return true
  })
  if (alive) return
  log.error(
    'no reaper is alive anywhere: what dying workers hold stays held. Run `leasehold work --only reaper`',
  )
}
