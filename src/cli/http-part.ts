import { createHealth, type Check, type Logger } from '../observe/index.ts'
import { startServer, type HttpServer } from '../server/index.ts'
import type { LoadedSettings } from '../config/index.ts'
import type { Part } from './parts.ts'

export interface HttpOptions {
  readonly loaded: LoadedSettings
  readonly version: string
  readonly log: Logger
  readonly checks: readonly Check[]
  readonly metrics: () => Promise<string>
  /** Where nobody has chosen a port. */
  readonly defaultPort: 'usual' | 'anyFree'
}

const STOP_WITHIN_MS = 5_000

export async function startHttpPart(
  options: HttpOptions,
): Promise<{ readonly http: HttpServer; readonly part: Part }> {
  const { version, log, checks, metrics, defaultPort } = options
  const { settings, sources } = options.loaded
  const isChosen = sources.port.kind !== 'default'
  const http = await startServer({
    version,
    health: createHealth(checks),
    metrics,
    host: settings.host,
    port: isChosen || defaultPort === 'usual' ? settings.port : 0,
    whenTaken: isChosen ? 'refuse' : 'anyPort',
    onError: (error) => log.error({ err: error }, 'a request failed'),
  })
  log.info({ url: http.url }, 'HTTP listens')
  return { http, part: { name: 'HTTP', stopWithinMs: STOP_WITHIN_MS, stop: async () => http.stop() } }
}
