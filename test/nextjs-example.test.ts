/** The example with Next.js, which has packages of its own: it is built and served as in production. */
import { expect, it } from 'vitest'
import { useDatabase } from './support/database.ts'
import { installed } from './support/installed.ts'
import { useProcesses } from './support/processes.ts'

const { spawnNode } = useProcesses()
const { url: databaseUrl } = useDatabase()

it('Next.js: a built application writes events, and serves the dashboard and the API behind its login', async () => {
  await installed('examples/nextjs')
  const env = { DATABASE_URL: databaseUrl, PORT: '0', ADMIN_PASSWORD: 'correct horse' }
  const launcher = spawnNode('scripts/example.mjs', ['nextjs'], { env })
  const listening = await launcher.line((line) => line.includes('http://127.0.0.1:'))
  const url = /http:\/\/127\.0\.0\.1:\d+/.exec(listening)?.[0] ?? ''
  const ask = async (path: string, init: RequestInit = {}): Promise<Response> =>
    fetch(`${url}${path}`, { redirect: 'manual', ...init })
  const submit = async (path: string, fields: Record<string, string>): Promise<Response> =>
    ask(path, { method: 'POST', body: new URLSearchParams(fields) })

  expect((await submit('/orders', { item: 'a kettle' })).status).toBe(303)
  const confirmed = await launcher.line((line) => /^order \d+ is confirmed$/.test(line))
  const page = async (): Promise<string> => (await ask('/')).text()
  expect(await page()).toMatch(/a kettle(?:<!-- -->)?: (?:<!-- -->)?confirmed/)

  expect((await ask('/admin/leasehold')).headers.get('location')).toBe('/login')
  expect((await submit('/login', { password: 'wrong' })).status).toBe(401)
  const loggedIn = await submit('/login', { password: 'correct horse' })
  const headers = { cookie: loggedIn.headers.get('set-cookie')?.split(';')[0] ?? '' }
  const dashboard = await (await ask('/admin/leasehold', { headers })).text()
  expect(dashboard).toContain('<title>Leasehold</title>')
  const script = /src="([^"]+)"/.exec(dashboard)?.[1] ?? ''
  expect((await ask(script, { headers })).headers.get('content-type')).toMatch(/javascript/)

  const events = await ask('/admin/leasehold/api/v1/outbox/events?limit=1', { headers })
  const { items } = (await events.json()) as { items: readonly { id: string; status: string }[] }
  expect(items).toMatchObject([{ status: 'PUBLISHED', orderingKey: confirmed.split(' ')[1] }])
  // A change from the page of the dashboard, and one from a page of another site.
  const replay = async (origin: string): Promise<Response> =>
    ask(`/admin/leasehold/api/v1/outbox/events/${items[0]?.id}/replay`, {
      method: 'POST',
      headers: { ...headers, origin, 'content-type': 'application/json' },
      body: JSON.stringify({ reason: 'a test' }),
    })
  expect((await replay('https://elsewhere.example')).status).toBe(403)
  expect((await replay(url)).status).toBe(200)

  expect(await launcher.kill(), launcher.output().stderr).toEqual({ code: 0, signal: null })
})
