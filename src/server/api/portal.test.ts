/** The portal: a link is used once, and opens a session that sees and changes one tenant, for an hour. */
import { describe, expect, it } from 'vitest'
import { createKey, revokeKey } from '../../operations/api-keys.ts'
import { createPortalLink, findSession, type NewPortalLink } from '../../operations/api-sessions.ts'
import { sampleBody, samplePath } from '../../../test/support/api-samples.ts'
import { OTHER_TENANT, type Received, type Sent, TENANT, useApi } from '../../../test/support/api.ts'
import {
  clientAddress,
  type RouteCase,
  testAllHaveCases,
  testRoute,
} from '../../../test/support/route-cases.ts'
import { makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { openDatabase } from '../../postgres/index.ts'
import { createApi } from './api.ts'
import { SESSION_COOKIE } from './authorize.ts'
import { ROUTES } from './resources/index.ts'
import { PORTAL } from './resources/portal.ts'

const api = useApi({ clientAddress })
const { send, db, keys, loginUrl } = api

let clients = 0
/** Failed attempts are limited by address. */
const elsewhere = (): Readonly<Record<string, string>> => ({ 'x-client': `client ${(clients += 1)}` })

const LINK = { tenant: TENANT, role: 'read' } as const

async function makeLink(link: Partial<NewPortalLink> = {}, sent: Sent = {}): Promise<string> {
  const made = await send('POST', '/portal/links', { key: 'operate', body: { ...LINK, ...link }, ...sent })
  expect(made.status).toBe(201)
  return made.body.token
}

async function use(link: unknown, headers: Readonly<Record<string, string>> = {}): Promise<Received> {
  return send('POST', '/session', { key: null, body: { link }, headers: { ...elsewhere(), ...headers } })
}

async function open(link: Partial<NewPortalLink> = {}, sent: Sent = {}): Promise<string> {
  const opened = await use(await makeLink(link, sent))
  expect(opened.status).toBe(200)
  return opened.body.bearer
}

/** As the portal sends it. */
async function ask(bearer: string, method: string, path: string, sent: Sent = {}): Promise<Received> {
  const headers = { ...elsewhere(), authorization: `Bearer ${bearer}`, ...sent.headers }
  return send(method, path, { ...sent, key: null, headers })
}

const REFUSED = { status: 401, body: { code: 'KEY_INVALID' } }

const CASES: readonly RouteCase[] = [
  {
    route: 'POST /portal/links',
    happy: async () =>
      Promise.resolve({
        path: '/portal/links',
        body: { ...LINK, name: 'ada', expiresInSeconds: 10 },
        answer: {
          token: expect.stringMatching(/^lhl_[\w-]{43}$/),
          path: expect.stringMatching(/^portal#lhl_/),
        },
        afterwards: async ({ body: { token, path, expiresAt } }) => {
          if (token === undefined) return
          expect(path).toBe(`portal#${token}`)
          const { rows } = await db.query<{ expiresAt: Date }>({
            text: `select expires_at as "expiresAt" from leasehold.api_portal_links where hash = sha256($1)`,
            values: [Buffer.from(token)],
          })
          expect(rows.map((row) => row.expiresAt.toISOString())).toEqual([expiresAt])
        },
      }),
    invalid: async () =>
      Promise.resolve([
        { field: 'tenant', body: { role: 'read' } },
        { field: 'tenant', body: { ...LINK, tenant: '' } },
        { field: 'tenant', body: { ...LINK, tenant: 'a\0b' } },
        { field: 'role', body: { ...LINK, role: 'admin' } },
        { field: 'role', body: { tenant: TENANT } },
        { field: 'expiresInSeconds', body: { ...LINK, expiresInSeconds: 9 } },
        { field: 'expiresInSeconds', body: { ...LINK, expiresInSeconds: 3_601 } },
        { field: 'expiresInSeconds', body: { ...LINK, expiresInSeconds: 10.5 } },
        { field: 'name', body: { ...LINK, name: '' } },
        { field: 'name', body: { ...LINK, name: 'x'.repeat(101) } },
        { field: 'name', body: { ...LINK, name: ' ada' } },
        { field: 'name', body: { ...LINK, name: 'a/b' } },
      ]),
  },
]

async function everything(): Promise<unknown> {
  const { rows } = await db.query({
    text: `select (select count(*) from leasehold.api_portal_links) as links, (select count(*) from leasehold.api_sessions) as sessions,
  (select count(*) from leasehold.audit) as entries`,
  })
  return rows
}

testAllHaveCases(PORTAL, CASES)
for (const each of CASES) testRoute(api, each, everything)

describe('a link', () => {
  it('opens a session of its tenant and role, for an hour, which has no cookie', async () => {
    const opened = await use(await makeLink({ role: 'operate', name: 'ada' }))
    expect(opened).toMatchObject({
      status: 200,
      body: {
        principal: 'acme/portal:ada',
        role: 'operate',
        tenant: TENANT,
        kind: 'portal',
        bearer: expect.stringMatching(/^lhs_[\w-]{43}$/),
      },
    })
    expect(opened.headers.get('set-cookie')).toBeNull()
    const { bearer, ...who } = opened.body
    expect((await ask(bearer, 'GET', '/session')).body).toEqual(who)
    const leftSeconds = (new Date(who.expiresAt).getTime() - Date.now()) / 1_000
    expect(leftSeconds).toSatisfy((left: number) => left > 3_000 && left < 3_700)
    expect((await ask(await open(), 'GET', '/session')).body).toMatchObject({
      principal: 'acme/portal',
      role: 'read',
    })
  })

  it('is used once, also by several at the same time', async () => {
    const link = await makeLink()
    const answers = await Promise.all(Array.from({ length: 5 }, async () => use(link)))
    expect(answers.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, 401, 401, 401, 401])
    expect(await use(link)).toMatchObject({
      ...REFUSED,
      body: { detail: expect.stringContaining('was used before'), errors: [{ field: 'body.link' }] },
    })
  })

  it('is refused once it has expired', async () => {
    const link = await makeLink()
    await db.query({
      text: 'update leasehold.api_portal_links set expires_at = now() where hash = sha256($1)',
      values: [Buffer.from(link)],
    })
    expect(await use(link)).toMatchObject(REFUSED)
  })

  it('cannot be guessed, nor is anything else accepted as one', async () => {
    const link = await makeLink()
    const bearer = await open()
    const { rows } = await db.query<{ hash: Buffer }>({ text: 'select hash from leasehold.api_portal_links' })
    const hashes = rows.flatMap(({ hash }) => [hash.toString('hex'), `lhl_${hash.toString('base64url')}`])
    const others = [
      `${link}A`,
      link.slice(0, -1),
      link.toUpperCase(),
      link.slice(4),
      ` ${link}`,
      '',
      '%00',
      '\0',
      '\ud800',
    ]
    for (const guess of [...others, ...hashes, `lhl_${'A'.repeat(43)}`, keys.admin, bearer])
      expect(await use(guess), guess).toMatchObject(REFUSED)
    expect((await use(link)).status).toBe(200)
  })

  it('counts as a wrong key where it is wrong, so that guesses are limited', async () => {
    const statuses = new Set<number>()
    for (let n = 0; n < 20; n += 1)
      statuses.add((await use(`lhl_${'B'.repeat(43)}`, { 'x-client': 'guesses links' })).status)
    expect([...statuses]).toEqual([401, 429])
  })

  it('opens nothing by itself: it is no key, no session and no cookie', async () => {
    const link = await makeLink()
    expect(await ask(link, 'GET', '/session')).toMatchObject(REFUSED)
    const headers = { ...elsewhere(), cookie: `${SESSION_COOKIE}=${link}` }
    expect(await send('GET', '/session', { key: null, headers })).toMatchObject(REFUSED)
    expect(await send('POST', '/session', { key: null, headers, body: { key: link } })).toMatchObject(REFUSED)
  })

  it('is not used up by a page of another site', async () => {
    const link = await makeLink()
    expect((await use(link, { origin: 'https://evil.example' })).status).toBe(403)
    expect((await use(link)).status).toBe(200)
  })

  it('is made by a key of a tenant for that tenant only', async () => {
    expect((await send('POST', '/portal/links', { key: 'tenantOperate', body: LINK })).status).toBe(201)
    const body = { ...LINK, tenant: OTHER_TENANT }
    const refused = await send('POST', '/portal/links', { key: 'tenantOperate', body })
    expect(refused).toMatchObject({
      status: 403,
      body: { code: 'ROLE_TOO_LOW', errors: [{ field: 'body.tenant' }] },
    })
  })

  it('is in the audit, and neither it nor its session is stored anywhere', async () => {
    const headers = { 'idempotency-key': 'portal' }
    const link = await makeLink({ tenant: 'initech', name: 'bill' }, { headers })
    const repeated = await send('POST', '/portal/links', {
      key: 'operate',
      body: { ...LINK, tenant: 'initech', name: 'bill' },
      headers,
    })
    expect(repeated.body).toEqual({ expiresAt: expect.any(String) })
    const { body } = await send('GET', '/audit?action=webhooks.portal.link&target=initech')
    expect(body.items).toMatchObject([
      { principal: 'operate', target: 'initech', details: { role: 'read', name: 'bill' } },
    ])
    const bearer = (await use(link)).body.bearer
    const { rows } = await db.query<{ name: string }>({
      text: `select tablename as name from pg_tables where schemaname = 'leasehold'`,
    })
    for (const { name } of rows) {
      const { rows: lines } = await db.query<{ line: string }>({
        text: `select t::text as line from leasehold.${name} as t`,
      })
      const found = lines.filter(({ line }) => [link, bearer].some((token) => line.includes(token.slice(4))))
      expect(found, name).toEqual([])
    }
  })
})

describe('a session of the portal', () => {
  it('is refused once it has expired, with what to do', async () => {
    const bearer = await open()
    await db.query({
      text: 'update leasehold.api_sessions set expires_at = now() where hash = sha256($1)',
      values: [Buffer.from(bearer)],
    })
    expect(await ask(bearer, 'GET', '/session')).toMatchObject({
      ...REFUSED,
      body: { detail: expect.stringContaining('expired'), remedy: expect.stringContaining('a new link') },
    })
  })

  it('is ended by DELETE /session', async () => {
    const [bearer, other] = [await open(), await open()]
    expect((await ask(bearer, 'DELETE', '/session')).status).toBe(204)
    expect(await ask(bearer, 'GET', '/session')).toMatchObject(REFUSED)
    expect((await ask(other, 'GET', '/session')).status).toBe(200)
  })

  it('is not accepted as a cookie', async () => {
    const headers = { ...elsewhere(), cookie: `${SESSION_COOKIE}=${await open()}` }
    expect(await send('GET', '/session', { key: null, headers })).toMatchObject(REFUSED)
  })

  it.each([
    ['revoked', async (id: string) => void (await revokeKey(db, id, { principal: 'test' }))],
    [
      'expired',
      async (id: string) =>
        void (await db.query({
          text: 'update leasehold.api_keys set expires_at = now() where id = $1',
          values: [id],
        })),
    ],
    [
      'removed',
      async (id: string) =>
        void (await db.query({ text: 'delete from leasehold.api_keys where id = $1', values: [id] })),
    ],
  ])('ends when the key of its link is %s, and links of that key open nothing', async (how, end) => {
    const key = await createKey(db, { name: `to be ${how}`, role: 'operate' }, { principal: 'test' })
    // A session of the key is as good as the key.
    const opened = await send('POST', '/session', { key: null, body: { key: key.key }, headers: elsewhere() })
    const [cookie = ''] = (opened.headers.get('set-cookie') ?? '').split(';')
    for (const headers of [{ authorization: `Bearer ${key.key}` }, { cookie }]) {
      const sent = { key: null, headers } as const
      expect((await ask(await open({}, sent), 'GET', '/session')).status).toBe(200)
    }
    const sent = { key: null, headers: { cookie } } as const
    const [bearer, link] = [await open({}, sent), await makeLink({}, sent)]
    await end(key.id)
    expect(await ask(bearer, 'GET', '/session')).toMatchObject(REFUSED)
    expect(await use(link)).toMatchObject(REFUSED)
  })

  const others = ROUTES.filter((route) => !route.isOpen && !route.forTenants)
  const named = (routes: typeof others) =>
    routes.map((route) => ({ name: `${route.method} ${route.path}`, route }))
  it.each(named(others))('is refused $name, which concerns all tenants', async ({ route }) => {
    const sent = { body: sampleBody(route) }
    for (const role of ['read', 'operate'] as const)
      expect(await ask(await open({ role }), route.method, samplePath(route), sent)).toMatchObject({
        status: 403,
        body: { code: 'ROLE_TOO_LOW' },
      })
  })

  const changing = ROUTES.filter((route) => route.forTenants && route.role !== 'read')
  it.each(named(changing))('that may only read is refused $name', async ({ route }) => {
    const sent = { body: sampleBody(route) }
    expect(await ask(await open(), route.method, samplePath(route), sent)).toMatchObject({ status: 403 })
  })

  it('there are routes of both kinds', () => {
    expect(changing.length).toBeGreaterThan(5)
    expect(others.length).toBeGreaterThan(20)
  })

  it('makes no links: one after the other, it would never end', async () => {
    const bearer = await open({ role: 'operate' })
    expect(await ask(bearer, 'POST', '/portal/links', { body: LINK })).toMatchObject({
      status: 403,
      body: { code: 'ROLE_TOO_LOW', detail: expect.stringContaining('makes no links') },
    })
  })

  it('sees and changes what belongs to its tenant, and nothing else; the audit names it', async () => {
    const mine = await makeEndpoint(db, { tenant: TENANT })
    const theirs = await makeEndpoint(db, { tenant: OTHER_TENANT })
    await makeDeliveries(db, mine, 1, { status: 'failed' })
    await makeDeliveries(db, theirs, 1, { status: 'failed' })
    const { rows } = await db.query<{ id: string }>({
      text: 'select id::text as id from leasehold.webhook_outbox where endpoint_id = $1',
      values: [theirs],
    })
    const delivery = rows[0]?.id ?? ''
    const bearer = await open({ role: 'operate', name: 'ada' })
    const listed = (await ask(bearer, 'GET', '/webhooks/endpoints')).body.items as readonly {
      tenant: string
    }[]
    expect(new Set(listed.map(({ tenant }) => tenant))).toEqual(new Set([TENANT]))
    const deliveries = (await ask(bearer, 'GET', '/webhooks/deliveries')).body.items
    expect(deliveries.map((each: { endpointId: string }) => each.endpointId)).toEqual([mine])
    const description = { description: 'mine' }
    expect((await ask(bearer, 'PATCH', `/webhooks/endpoints/${mine}`, { body: description })).status).toBe(
      200,
    )
    for (const [method, path, body] of [
      ['GET', `/webhooks/endpoints/${theirs}`, undefined],
      ['PATCH', `/webhooks/endpoints/${theirs}`, description],
      ['DELETE', `/webhooks/endpoints/${theirs}`, undefined],
      ['POST', `/webhooks/endpoints/${theirs}/rotate-secret`, {}],
      ['GET', `/webhooks/deliveries/${delivery}`, undefined],
      ['POST', `/webhooks/deliveries/${delivery}/replay`, { reason: 'mine' }],
    ] as const)
      expect(await ask(bearer, method, path, { body }), `${method} ${path}`).toMatchObject({
        status: 404,
        body: { code: expect.stringMatching(/^(ENDPOINT|DELIVERY)_NOT_FOUND$/) },
      })
    const { rows: entries } = await db.query({
      text: `select principal from leasehold.audit where target = $1 and action like 'webhooks.endpoint.%' order by id desc limit 1`,
      values: [mine],
    })
    expect(entries).toEqual([{ principal: 'acme/portal:ada' }])
  })

  it('needs no origin of its own, because no browser adds its token', async () => {
    const id = await makeEndpoint(db, { tenant: TENANT })
    const bearer = await open({ role: 'operate' })
    const sent = { body: { description: 'embedded' }, headers: { origin: 'https://customer.example' } }
    expect((await ask(bearer, 'PATCH', `/webhooks/endpoints/${id}`, sent)).status).toBe(200)
  })

  it('has a name that no key has, and a key of a tenant has one that no other has', async () => {
    for (const { name, tenant } of [
      { name: 'portal', tenant: TENANT },
      { name: 'portal:ada', tenant: TENANT },
      // The principal of the portal of a tenant, and that of a key of the tenant acme/eu.
      { name: `${TENANT}/portal:ada`, tenant: undefined },
      { name: 'eu/ci', tenant: TENANT },
    ])
      await expect(
        createKey(db, { name, role: 'read', tenant }, { principal: 'test' }),
        name,
      ).rejects.toMatchObject({
        code: 'REQUEST_INVALID',
        field: 'name',
      })
  })
})

describe('where the login is one of the user', () => {
  it('that login makes links, and sessions of the portal are let in without asking it', async () => {
    const own = openDatabase({ url: loginUrl })
    let asked = 0
    const custom = createApi({
      db: own,
      authorize: (request) => {
        asked += 1
        const isAda = request.headers.get('x-user') === 'ada'
        return isAda ? { principal: 'ada', role: 'operate', tenant: null } : undefined
      },
    })
    const call = async (
      method: string,
      path: string,
      headers: Readonly<Record<string, string>>,
      body?: object,
    ) => {
      const response = await custom.fetch(
        new Request(`http://localhost/api/v1${path}`, {
          method,
          headers: { 'content-type': 'application/json', ...headers },
          ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        }),
      )
      // oxlint-disable-next-line typescript/no-explicit-any -- the test reads what it expects
      return { status: response.status, body: (await response.json()) as any }
    }
    const user = { 'x-user': 'ada' }
    expect((await call('GET', '/session', user)).body).toMatchObject({ kind: 'custom', expiresAt: null })
    const { body: link } = await call('POST', '/portal/links', user, LINK)
    const { body: opened } = await call('POST', '/session', {}, { link: link.token })
    const before = asked
    const authorization = `Bearer ${opened.bearer}`
    expect(await call('GET', '/session', { authorization })).toMatchObject({
      status: 200,
      body: { principal: 'acme/portal', tenant: TENANT, kind: 'portal' },
    })
    // Nor does the login give more to a session that is not valid.
    const wrong = { ...user, authorization: `Bearer lhs_${'A'.repeat(43)}` }
    expect(await call('GET', '/session', wrong)).toMatchObject(REFUSED)
    expect(asked).toBe(before)
    expect(await findSession(db, opened.bearer, 'portal')).toMatchObject({ keyId: null })
    await custom.stop()
    await own.close()
  })
})

it('where no key is needed, whoever asks is local, and a wrong session is still refused', async () => {
  const own = openDatabase({ url: loginUrl })
  const local = createApi({ db: own, withoutKey: { principal: 'local', role: 'admin', tenant: null } })
  const call = async (headers: Readonly<Record<string, string>>) =>
    local.fetch(new Request('http://localhost/api/v1/session', { headers }))
  await expect((await call({})).json()).resolves.toMatchObject({
    kind: 'local',
    role: 'admin',
    expiresAt: null,
  })
  expect((await call({ authorization: `Bearer lhs_${'A'.repeat(43)}` })).status).toBe(401)
  await local.stop()
  await own.close()
})

it('a link that a command made has no key', async () => {
  const { token } = await createPortalLink(db, LINK, { principal: 'the account', keyId: null })
  const { bearer } = (await use(token)).body
  expect(await findSession(db, bearer, 'portal')).toMatchObject({ keyId: null, principal: 'portal' })
})
