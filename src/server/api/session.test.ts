/** The session of the dashboard: a cookie that a key opens, and that ends with it. */
import { expect, it } from 'vitest'
import { createKey, revokeKey } from '../../operations/api-keys.ts'
import { type Sent, useApi } from '../../../test/support/api.ts'
import { openSession } from '../../operations/api-sessions.ts'
import { SESSION_COOKIE, SESSION_SECONDS } from './authorize.ts'
import { BackgroundChanges } from './background-changes.ts'
import { findActingRoles } from './acting.ts'

let clients = 0
const { send, db, keys, api } = useApi({ clientAddress: () => `client ${(clients += 1)}` })

async function open(key: string): Promise<string> {
  const opened = await send('POST', '/session', { key: null, body: { key } })
  expect(opened.status).toBe(200)
  const cookie = opened.headers.get('set-cookie') ?? ''
  return cookie.split(';')[0] ?? ''
}

function tokenIn(cookie: string): Buffer {
  return Buffer.from(cookie.slice(SESSION_COOKIE.length + 1))
}

async function sessions(): Promise<object[]> {
  return (await db.query({ text: 'select from leasehold.api_sessions' })).rows
}

/** Without a key. */
const by = (cookie: string, sent: Sent = {}): Sent => ({
  ...sent,
  key: null,
  headers: { cookie, ...sent.headers },
})

it('a key opens a session, in a cookie that no page can read and no other site can send', async () => {
  const opened = await send('POST', '/session', { key: null, body: { key: keys.operate } })
  expect(opened.body).toEqual({
    principal: 'operate',
    role: 'operate',
    tenant: null,
    kind: 'session',
    expiresAt: expect.any(String),
  })
  const leftMs = new Date(opened.body.expiresAt).getTime() - Date.now()
  expect(leftMs / 1_000).toSatisfy(
    (left: number) => left > SESSION_SECONDS - 600 && left < SESSION_SECONDS + 60,
  )
  const [value = '', ...attributes] = (opened.headers.get('set-cookie') ?? '').split('; ')
  expect(value).toMatch(new RegExp(`^${SESSION_COOKIE}=`))
  expect(attributes).toEqual(['Path=/', 'HttpOnly', 'SameSite=Strict', `Max-Age=${SESSION_SECONDS}`])
  expect(value).not.toContain(keys.operate)
  expect((await send('GET', '/session', by(value))).body).toEqual(opened.body)
  // It has what the key has, and no more.
  expect((await send('GET', '/outbox/events', by(value))).status).toBe(200)
  expect((await send('GET', '/keys', by(value))).status).toBe(403)
})

it('over HTTPS the cookie is sent over HTTPS only', async () => {
  const response = await api().fetch(
    new Request('https://leasehold.example/api/v1/session', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ key: keys.read }),
    }),
  )
  expect(response.headers.get('set-cookie')).toMatch(/; Secure$/)
})

it.each(['https', 'HTTPS', 'https, http', 'https,http'])(
  'behind proxies of which the first says %s, too',
  async (forwarded) => {
    const headers = { 'x-forwarded-proto': forwarded }
    const opened = await send('POST', '/session', { key: null, body: { key: keys.read }, headers })
    expect(opened.headers.get('set-cookie')).toMatch(/; Secure$/)
  },
)

it('behind proxies of which only a later one uses HTTPS, the cookie is sent over HTTP, too', async () => {
  const headers = { 'x-forwarded-proto': 'http, https' }
  const opened = await send('POST', '/session', { key: null, body: { key: keys.read }, headers })
  expect(opened.headers.get('set-cookie')).not.toMatch(/Secure/)
})

it('a key of a tenant opens a session of that tenant', async () => {
  const cookie = await open(keys.tenantRead)
  expect((await send('GET', '/session', by(cookie))).body).toMatchObject({
    principal: 'acme/tenantRead',
    tenant: 'acme',
    role: 'read',
  })
  expect((await send('GET', '/outbox/events', by(cookie))).status).toBe(403)
})

it.each([
  ['of another site', { origin: 'https://evil.example' }],
  ['of another port', { origin: 'http://localhost:9999' }],
  ['without an origin', { origin: 'null' }],
  ['that the browser calls cross-site', { 'sec-fetch-site': 'cross-site' }],
  ['that the browser calls same-site', { 'sec-fetch-site': 'same-site' }],
])('a change is refused that a page %s has the browser send', async (_, headers) => {
  const cookie = await open(keys.operate)
  const request = { body: { type: 'a', payload: 1 }, headers }
  expect(await send('POST', '/outbox/events', by(cookie, request))).toMatchObject({
    status: 403,
    body: { errors: [{ field: 'header.origin' }] },
  })
  // With a key that the client sends itself no browser was tricked.
  expect((await send('POST', '/outbox/events', { ...request, key: 'operate' })).status).toBe(201)
})

it.each([
  ['its own origin', { origin: 'http://localhost' }],
  ['its own origin with the default port', { origin: 'http://localhost', host: 'localhost:80' }],
  ['no origin, as other programs do', {}],
  ['its own site', { 'sec-fetch-site': 'same-origin' }],
])('a change is made from a page with %s', async (_, headers) => {
  const cookie = await open(keys.operate)
  const request = { body: { type: 'a', payload: 1 }, headers }
  expect((await send('POST', '/outbox/events', by(cookie, request))).status).toBe(201)
})

it.each([
  ['of another site', { origin: 'https://evil.example' }],
  ['that the browser calls cross-site', { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors' }],
  ['that the browser calls same-site', { 'sec-fetch-site': 'same-site', 'sec-fetch-mode': 'cors' }],
])('a page %s cannot have the browser ask, either', async (_, headers) => {
  const cookie = await open(keys.read)
  expect(await send('GET', '/outbox/events', by(cookie, { headers }))).toMatchObject({
    status: 403,
    body: { errors: [{ field: 'header.origin' }] },
  })
  expect((await send('GET', '/outbox/events', { headers, key: 'read' })).status).toBe(200)
})

it.each([
  ['its own page', { 'sec-fetch-site': 'same-origin', 'sec-fetch-mode': 'cors' }],
  ['the address bar', { 'sec-fetch-site': 'none', 'sec-fetch-mode': 'navigate' }],
  ['a link on another site', { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate' }],
])('a browser may ask from %s', async (_, headers) => {
  const cookie = await open(keys.read)
  expect((await send('GET', '/outbox/events', by(cookie, { headers }))).status).toBe(200)
})

it('another site cannot open or end a session either', async () => {
  const headers = { origin: 'https://evil.example' }
  const opened = await send('POST', '/session', { key: null, body: { key: keys.read }, headers })
  expect(opened.status).toBe(403)
  expect(opened.headers.get('set-cookie')).toBeNull()
  expect((await send('DELETE', '/session', { key: null, headers })).status).toBe(403)
})

it('the session ends when its key is revoked', async () => {
  const created = await createKey(db, { name: 'revoked', role: 'read' }, { principal: 'test' })
  const cookie = await open(created.key)
  expect((await send('GET', '/session', by(cookie))).status).toBe(200)
  await revokeKey(db, created.id, { principal: 'test' })
  expect((await send('GET', '/session', by(cookie))).status).toBe(401)
})

it('the session ends when its key expires', async () => {
  const expiresAt = new Date(Date.now() + 3_600_000)
  const created = await createKey(db, { name: 'expires', role: 'read', expiresAt }, { principal: 'test' })
  const cookie = await open(created.key)
  await db.query({
    text: `update leasehold.api_keys set created_at = now() - interval '2 hours', expires_at = now() where name = 'expires'`,
  })
  expect((await send('GET', '/session', by(cookie))).status).toBe(401)
})

it('a session that has expired is refused, and removed by the maintenance', async () => {
  const cookie = await open(keys.read)
  const before = await sessions()
  await db.query({
    text: `update leasehold.api_sessions set expires_at = now() where hash = sha256($1)`,
    values: [tokenIn(cookie)],
  })
  expect(await send('GET', '/session', by(cookie))).toMatchObject({
    status: 401,
    body: { code: 'KEY_INVALID' },
  })
  expect(await sessions()).toHaveLength(before.length)
  const roles = findActingRoles(db, 'leasehold')
  const maintenance = new BackgroundChanges({
    db,
    schema: 'leasehold',
    roles,
    onError: (error) => {
      throw error
    },
  })
  await maintenance.resumeLeft()
  await maintenance.stop()
  expect(await sessions()).toHaveLength(before.length - 1)
})

it('whoever reads the tables cannot make a session of what is stored there', async () => {
  const cookie = await open(keys.admin)
  const { rows } = await db.query<{ stored: Buffer; key: Buffer; id: string }>({
    text: `select session.hash as stored, key.hash as key, key.id::text as id
from leasehold.api_sessions as session join leasehold.api_keys as key on key.id = key_id where session.hash = sha256($1)`,
    values: [tokenIn(cookie)],
  })
  const [row] = rows
  if (row === undefined) throw new Error('the session is stored by its hash')
  const known = [row.stored, row.key].flatMap((hash) => [hash.toString('hex'), hash.toString('base64url')])
  const guesses = [
    ...known,
    ...known.map((text) => `lhs_${text}`),
    `lhs_${'A'.repeat(43)}`,
    row.id,
    '',
    'x',
    '%00',
  ]
  for (const guess of guesses) {
    expect((await send('GET', '/session', by(`${SESSION_COOKIE}=${guess}`))).status, guess).toBe(401)
    const headers = { authorization: `Bearer ${guess}` }
    expect((await send('GET', '/session', { key: null, headers })).status, guess).toBe(401)
  }
})

it('only the role of the API reads and writes sessions and links', async () => {
  const { rows } = await db.query<{ what: string; allowed: boolean }>({
    text: `select kind || ' ' || relation as what, has_table_privilege('leasehold_' || kind, 'leasehold.' || relation, 'select, insert, update, delete, truncate')
  or has_any_column_privilege('leasehold_' || kind, 'leasehold.' || relation, 'select, insert, update') as allowed
from unnest(array['producer', 'worker', 'reader', 'operator', 'tenant', 'api']) as kind,
  unnest(array['api_sessions', 'api_portal_links']) as relation order by relation desc`,
  })
  expect(rows.filter(({ allowed }) => allowed)).toMatchObject([
    { what: 'api api_sessions' },
    { what: 'api api_portal_links' },
  ])
})

it('the end of the session removes the cookie, and what was stored', async () => {
  const cookie = await open(keys.read)
  const other = await open(keys.read)
  const ended = await send('DELETE', '/session', by(cookie))
  expect(ended.status).toBe(204)
  expect(ended.headers.get('set-cookie')).toMatch(new RegExp(`^${SESSION_COOKIE}=; .*Max-Age=0$`))
  // A copy of the cookie opens nothing either.
  expect((await send('GET', '/session', by(cookie))).status).toBe(401)
  expect((await send('GET', '/session', by(other))).status).toBe(200)
  expect((await send('DELETE', '/session', by(cookie))).status).toBe(204)
})

it('a session ends no later than its key', async () => {
  const expiresAt = new Date(Date.now() + 3_600_000)
  const created = await createKey(db, { name: 'an hour', role: 'read', expiresAt }, { principal: 'test' })
  const cookie = await open(created.key)
  expect((await send('GET', '/session', by(cookie))).body.expiresAt).toBe(expiresAt.toISOString())
  const headers = { authorization: `Bearer ${created.key}` }
  expect((await send('GET', '/session', { key: null, headers })).body).toMatchObject({
    kind: 'key',
    expiresAt: expiresAt.toISOString(),
  })
})

it('a key that is revoked while a session is opened opens none', async () => {
  const { id } = await createKey(db, { name: 'revoked meanwhile', role: 'read' }, { principal: 'test' })
  await revokeKey(db, id, { principal: 'test' })
  const wanted = {
    kind: 'session',
    keyId: id,
    principal: 'x',
    role: 'read',
    tenant: null,
    seconds: 60,
  } as const
  expect(await openSession(db, wanted)).toBeUndefined()
})

it('opening a session needs either a key or a link', async () => {
  for (const body of [{}, { key: keys.read, link: 'lhl_x' }])
    expect(await send('POST', '/session', { key: null, body })).toMatchObject({
      status: 422,
      body: { errors: [{ field: 'body', detail: expect.stringContaining('give either key or link') }] },
    })
})

it('a key is not accepted as a session, and a session is not accepted as a key', async () => {
  const cookie = await open(keys.read)
  expect((await send('GET', '/session', by(`${SESSION_COOKIE}=${keys.read}`))).status).toBe(401)
  const [, session = ''] = cookie.split('=')
  const headers = { authorization: `Bearer ${session}` }
  expect((await send('GET', '/session', { key: null, headers })).status).toBe(401)
})
