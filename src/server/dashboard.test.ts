/** The dashboard as a handler: which options it refuses, and what it answers without a browser. */
import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openDatabase } from '../postgres/index.ts'
import { createDashboard, type DashboardOptions } from './dashboard.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

it.each<[field: string, value: string, remedy: string, Partial<DashboardOptions>]>([
  ['basePath', '"ops"', 'such as /admin/leasehold', { basePath: 'ops' }],
  ['basePath', '"/"', 'without a slash at its end', { basePath: '/' }],
  ['basePath', '"/ops/"', 'without a slash at its end', { basePath: '/ops/' }],
  ['basePath', String.raw`"/ops\"><script>"`, 'such as /admin/leasehold', { basePath: '/ops"><script>' }],
  ['instance.name', '"  "', '1 to 40 characters', { instance: { name: '  ' } }],
  ['instance.color', '"red"', 'such as #b00020', { instance: { color: 'red' } }],
  ['instance.color', '"#b0002"', 'six hexadecimal digits', { instance: { color: '#b0002' } }],
  [
    'portalOrigins',
    '"https://app.example.com/shop"',
    'without a path',
    { portalOrigins: ['https://app.example.com/shop'] },
  ],
  [
    'portalOrigins',
    `"https://a.example; script-src *"`,
    'such as https://app.example.com',
    { portalOrigins: ['https://ok.example', 'https://a.example; script-src *'] },
  ],
])('createDashboard refuses the %s %s, and says what to give', (field, value, remedy, options) => {
  let refused: unknown
  try {
    createDashboard({ db, ...options })
  } catch (error) {
    refused = error
  }
  expect(refused).toMatchObject({ code: 'SETTING_INVALID', field })
  const { message } = refused as Error
  expect(message).toContain(field)
  expect(message).toContain(value)
  expect(message).toContain(remedy)
})

describe('the handler', () => {
  const dashboard = createDashboard({
    db,
    basePath: '/ops',
    instance: { name: '<b>"live"', color: '#b00020' },
  })
  afterAll(async () => dashboard.stop())
  const ask = async (path: string, init?: RequestInit): Promise<Response> =>
    dashboard.fetch(new Request(`http://localhost${path}`, init))

  it('answers every address below its path with the page, and no other', async () => {
    for (const path of ['/ops', '/ops/', '/ops/outbox', '/ops/outbox/events/4711', '/ops/no/such/page']) {
      const response = await ask(path)
      expect([path, response.status]).toEqual([path, 200])
      expect(response.headers.get('content-type')).toBe('text/html; charset=utf-8')
    }
    for (const path of ['/', '/opsx', '/outbox', '/ops/assets/none.js'])
      expect([path, (await ask(path)).status]).toEqual([path, 404])
    expect((await ask('/ops/outbox', { method: 'POST' })).status).toBe(405)
    const api = await ask('/ops/api/v1/nonsense')
    expect(api.headers.get('content-type')).toBe('application/problem+json')
  })

  it('escapes what it writes into the page', async () => {
    const html = await (await ask('/ops')).text()
    expect(html).not.toContain('<b>')
    expect(html).toContain('<title>&#60;b&#62;&#34;live&#34; · Leasehold</title>')
  })

  it('sends assets compressed where the browser takes that, and to be kept for ever', async () => {
    const html = await (await ask('/ops')).text()
    const script = /src="([^"]+)"/.exec(html)?.[1] ?? ''
    const plain = await ask(script)
    const size = (await plain.arrayBuffer()).byteLength
    for (const encoding of ['br', 'gzip']) {
      const response = await ask(script, { headers: { 'accept-encoding': encoding } })
      expect(response.headers.get('content-encoding')).toBe(encoding)
      expect(response.headers.get('cache-control')).toBe('public, max-age=31536000, immutable')
      expect(response.headers.get('vary')).toBe('accept-encoding')
      expect((await response.arrayBuffer()).byteLength).toBeLessThan(size / 2)
    }
  })
})
