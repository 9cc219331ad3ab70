/** The routes: what each address answers. */
import { Hono } from 'hono'
import { LOOPBACK_HOSTS } from '../config/schema.ts'
import type { Health } from '../observe/health.ts'
import { CONTENT_TYPE } from '../observe/prometheus.ts'
import type { Api } from './api/api.ts'

export interface AppOptions {
  readonly version: string
  readonly health: Health
  /** The text of `/metrics`; without it that address does not exist. */
  readonly metrics?: () => Promise<string>
  /** The dashboard, and the HTTP API below it; without it the server answers health checks and metrics, and nothing else. */
  readonly dashboard?: Pick<Api, 'fetch'> | undefined
  /** Whether only this machine reaches the server. */
  readonly isLoopback: boolean
  /** A function, because the port is known only once the server listens. */
  readonly port: () => number
  readonly onError: (error: Error) => void
}

const HEADERS = {
  'cache-control': 'no-store',
  'content-security-policy': "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
}

export function createApp(options: AppOptions): Hono<{ Bindings: object }> {
  const { version, health, metrics, dashboard, isLoopback, port, onError } = options
  const app = new Hono<{ Bindings: object }>()

  app.use(async (c, next) => {
    for (const [name, value] of Object.entries(HEADERS)) c.header(name, value)
    const host = c.req.header('host')
    // From elsewhere the server has names that it does not know. What it answers there is for everybody who reaches it.
    if (isLoopback && !isOwnHost(host, port())) {
      return c.json({ error: `The Host header ${host ?? '(none)'} does not name this server.` }, 403)
    }
    return next()
  })

  if (isLoopback && dashboard === undefined)
    app.get('/', (c) => c.html(startPage(version, { hasMetrics: metrics !== undefined })))

  // It does not ask the database: restarting this process would not repair that.
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

  // Everything else. The Node adapter gives the address of the client.
  if (dashboard !== undefined) app.all('*', async (c) => dashboard.fetch(c.req.raw, c.env))
  app.notFound((c) => c.json({ error: `There is no ${c.req.method} ${c.req.path}.` }, 404))
  app.onError((error, c) => {
    onError(error)
    return c.json({ error: 'The request failed; the log has the details.' }, 500)
  })
  return app
}

/**
 * Whether a Host header names this server. A page in the user's browser can make a name of its own resolve to 127.0.0.1
 * (DNS rebinding), but the header then still carries that name.
 */
function isOwnHost(header: string | undefined, port: number): boolean {
  const hosts = LOOPBACK_HOSTS.map(hostInUrl)
  const withPort = hosts.map((host) => `${host}:${port}`)
  // A browser leaves out the default port.
  const allowed = port === 80 ? [...hosts, ...withPort] : withPort
  return header !== undefined && allowed.includes(header.toLowerCase())
}

/** The host as it is written in a URL and in a Host header. */
export function hostInUrl(host: string): string {
  return host.includes(':') ? `[${host}]` : host
}

const STYLE = 'body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:3rem auto;padding:0 1rem}'

/** The page for a person who opens the address of a process without a dashboard in a browser. */
function startPage(version: string, { hasMetrics }: { readonly hasMetrics: boolean }): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Leasehold ${version}</title>
<style>${STYLE}</style>
</head>
<body>
<h1>Leasehold ${version}</h1>
<p>Time-bounded, fenced leases on the rows of any PostgreSQL table. This process is running.
<code>leasehold serve</code> shows the dashboard.</p>
<ul>
<li><a href="/readyz?verbose">/readyz?verbose</a>: whether this process can do its work: the database, its schema, the workers and the reaper</li>
<li><a href="/livez">/livez</a>: whether this process is alive</li>
${hasMetrics ? '<li><a href="/metrics">/metrics</a>: what it has done, in the format of Prometheus</li>' : ''}
</ul>
</body>
</html>
`
}
