import { Hono } from 'hono'
import type { Health } from '../observe/health.ts'
import { CONTENT_TYPE } from '../observe/prometheus.ts'
import { isOwnHost } from '../config/loopback.ts'
import { startPage } from './page.ts'

export interface AppOptions {
  readonly version: string
  readonly health: Health
  /** What /metrics answers; without it there is no such page. */
  readonly metrics?: () => Promise<string>
  /** Known only once the server listens. */
  readonly port: () => number
  readonly onError: (error: Error) => void
}

const HEADERS = {
  'cache-control': 'no-store',
  'content-security-policy': "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
}

export function createApp({ version, health, metrics, port, onError }: AppOptions): Hono {
  const app = new Hono()

  app.use(async (c, next) => {
    for (const [name, value] of Object.entries(HEADERS)) c.header(name, value)
    const host = c.req.header('host')
    if (!isOwnHost(host, port())) {
      return c.json({ error: `The Host header ${host ?? '(none)'} does not name this server.` }, 403)
    }
    return next()
  })

  app.get('/', (c) => c.html(startPage(version, metrics !== undefined)))

  // Never asks the database: a restart of this process would not mend it.
  app.get('/livez', (c) => c.json({ status: 'alive' }))

  app.get('/readyz', async (c) => {
    const checks = await health.examine()
    const failed = checks.filter(({ ok }) => !ok).map(({ name }) => name)
    const verbose = c.req.query('verbose') !== undefined
    const body = {
      status: failed.length === 0 ? 'ready' : 'not ready',
      failed,
      ...(verbose ? { checks } : {}),
    }
    return c.json(body, failed.length === 0 ? 200 : 503)
  })

  if (metrics !== undefined) {
    app.get('/metrics', async (c) => c.body(await metrics(), 200, { 'content-type': CONTENT_TYPE }))
  }

  app.notFound((c) => c.json({ error: `There is no ${c.req.method} ${c.req.path}.` }, 404))
  app.onError((error, c) => {
    onError(error)
    return c.json({ error: 'Something went wrong; the log has the details.' }, 500)
  })
  return app
}
