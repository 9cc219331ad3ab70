/** The session of the dashboard: a cookie that a key opens, and that ends with it. */
import { expect, it } from 'vitest'
import { createKey, readKey, revokeKey } from '../../admin/api-keys.ts'
import { type Sent, useApi } from '../../../test/support/api.ts'
import { SESSION_COOKIE, SESSION_SECONDS, sessionOf } from './authorize.ts'

let clients = 0
const { send, db, keys, api } = useApi({ clientAddress: () => `client ${(clients += 1)}` })

async function open(key: string): Promise<string> {
  const opened = await send('POST', '/session', { key: null, body: { key } })
  expect(opened.status).toBe(200)
  const cookie = opened.headers.get('set-cookie') ?? ''
  return cookie.split(';')[0] ?? ''
}

/** Without a key. */
const by = (cookie: string, sent: Sent = {}): Sent => ({
  ...sent,
  key: null,
  headers: { cookie, ...sent.headers },
})

it('a key opens a session, in a cookie that no page can read and no other site can send', async () => {
  const opened = await send('POST', '/session', { key: null, body: { key: keys.operate } })
  expect(opened.body).toEqual({ principal: 'operate', role: 'operate', tenant: null })
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

it('a key of a tenant opens a session of that tenant', async () => {
  const cookie = await open(keys.tenantRead)
  expect((await send('GET', '/session', by(cookie))).body).toMatchObject({ tenant: 'acme', role: 'read' })
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

it('a session that has expired, or was forged, is refused', async () => {
  const { rows } = await db.query<{ id: string }>({
    text: `select id::text as id from leasehold.api_keys where name = 'read'`,
  })
  const key = await readKey(db, rows[0]?.id ?? '')
  const other = await readKey(
    db,
    (await createKey(db, { name: 'other', role: 'admin' }, { principal: 'test' })).id,
  )
  if (key === undefined || other === undefined) throw new Error('there are keys')
  const longAgo = Date.now() - SESSION_SECONDS * 1_000 - 1_000
  const current = sessionOf(key)
  expect((await send('GET', '/session', by(`${SESSION_COOKIE}=${current}`))).status).toBe(200)
  const [id = '', expires = '', signature = ''] = current.split('.')
  const forged = [
    sessionOf(key, longAgo),
    `${id}.${Number(expires) + 60}.${signature}`,
    `${other.id}.${expires}.${signature}`,
    `${id}.${expires}.${'A'.repeat(43)}`,
    `${id}.${expires}.`,
    `${id}.${expires}`,
    `${'-'.repeat(36)}.${expires}.${signature}`,
    `${id}.99999999999999.${signature}`,
    sessionOf({ ...key, hash: Buffer.alloc(32) }),
    '',
    'x',
    '%00',
  ]
  for (const session of forged)
    expect((await send('GET', '/session', by(`${SESSION_COOKIE}=${session}`))).status, session).toBe(401)
})

it('the end of the session removes the cookie', async () => {
  const cookie = await open(keys.read)
  const ended = await send('DELETE', '/session', by(cookie))
  expect(ended.status).toBe(204)
  expect(ended.headers.get('set-cookie')).toMatch(new RegExp(`^${SESSION_COOKIE}=; .*Max-Age=0$`))
})

it('a key is not accepted as a session, and a session is not accepted as a key', async () => {
  const cookie = await open(keys.read)
  expect((await send('GET', '/session', by(`${SESSION_COOKIE}=${keys.read}`))).status).toBe(401)
  const [, session = ''] = cookie.split('=')
  const headers = { authorization: `Bearer ${session}` }
  expect((await send('GET', '/session', { key: null, headers })).status).toBe(401)
})
