/** The HTTP API in servers of other frameworks, behind their login, at a path of its own. */
import { type Api, type Caller, createApi } from 'leasehold/server'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Database, openDatabase } from '../src/postgres/index.ts'
import { useApi } from './support/api.ts'
import {
  BASE,
  behindBodyParser,
  inExpress,
  inFastify,
  inHono,
  inNextRoute,
  mountedInHono,
  type Running,
  type StartFramework,
  userOf,
} from './support/frameworks.ts'

const { loginUrl, db } = useApi()

const USERS: Readonly<Record<string, Caller>> = {
  ada: { principal: 'ada', role: 'operate', tenant: null },
  grace: { principal: 'grace', role: 'read', tenant: null },
  acme: { principal: 'acme', role: 'read', tenant: 'acme' },
}

let own: Database
let api: Api
beforeAll(() => {
  own = openDatabase({ url: loginUrl })
  api = createApi({
    db: own,
    basePath: BASE,
    // Whatever the application knows of its users. Its login has put the user where servers of Node.js give it on, or has
    // given it to `fetch`.
    authorize: (_request, { incoming, user = userOf(incoming) }) => USERS[String(user)],
  })
})
afterAll(async () => {
  await api.stop()
  await own.close()
})

const frameworks: readonly (readonly [string, StartFramework])[] = [
  ['Hono, as a route', inHono],
  ['Hono, mounted', mountedInHono],
  ['Express', inExpress],
  ['Express, behind a parser of bodies', behindBodyParser],
  ['Fastify', inFastify],
  ['a route handler of Next.js', inNextRoute],
]

describe.each(frameworks)('the API in %s', (name, start) => {
  let server: Running
  beforeAll(async () => {
    server = await start(api)
    return async () => server.stop()
  })

  const ask = async (path: string, user?: string, init: RequestInit = {}): Promise<Response> =>
    fetch(`${server.url}${path}`, {
      ...init,
      headers: {
        ...(user === undefined ? {} : { cookie: `user=${user}` }),
        ...(init.body === undefined ? {} : { 'content-type': 'application/json' }),
        ...(init.headers as Record<string, string> | undefined),
      },
    })

  it('answers beside the application, at its own path', async () => {
    expect(await (await ask('/')).text()).toBe('the application')
    const described = await ask(`${BASE}/openapi.json`, 'grace')
    await expect(described.json()).resolves.toMatchObject({ servers: [{ url: BASE }] })
    expect((await ask(`${BASE}/overview`, 'grace')).status).toBe(200)
    const missing = await ask(`${BASE}/nonsense`, 'grace')
    expect(missing.status).toBe(404)
    expect(missing.headers.get('content-type')).toBe('application/problem+json')
  })

  it('is behind the login of the application, and follows its roles', async () => {
    const body = JSON.stringify({ type: 'a', payload: {} })
    expect(await (await ask(`${BASE}/overview`)).text()).toBe('log in first')
    expect((await ask(`${BASE}/overview`, 'nobody')).status).toBe(401)
    expect((await ask(`${BASE}/outbox/events`, 'grace', { method: 'POST', body })).status).toBe(403)
    expect((await ask(`${BASE}/outbox/events`, 'acme')).status).toBe(403)
    expect((await ask(`${BASE}/audit`, 'acme')).status).toBe(200)
  })

  it('writes, lists and changes, and the audit has the name of the user', async () => {
    const type = `from ${name}`
    const payload = { text: 'Grüße 🎉', numbers: [1, 2.5] }
    const body = JSON.stringify({ type, payload })
    const headers = { 'idempotency-key': name.replaceAll(/\W/g, '-') }
    const written = await ask(`${BASE}/outbox/events`, 'ada', { method: 'POST', body, headers })
    expect(written.status).toBe(201)
    const { id } = (await written.json()) as { id: string }
    const again = await ask(`${BASE}/outbox/events`, 'ada', { method: 'POST', body, headers })
    expect(again.headers.get('idempotency-replayed')).toBe('true')
    const query = new URLSearchParams({ type, limit: '1' })
    const listed = await ask(`${BASE}/outbox/events?${query.toString()}`, 'grace')
    await expect(listed.json()).resolves.toMatchObject({ items: [{ id, type }] })
    await expect((await ask(`${BASE}/outbox/events/${id}`, 'grace')).json()).resolves.toMatchObject({
      payload,
    })
    const reason = `a test in ${name}`
    const given = await ask(`${BASE}/outbox/events/${id}/give-up`, 'ada', {
      method: 'POST',
      body: JSON.stringify({ reason }),
    })
    expect(given.status).toBe(200)
    const { rows } = await db.query({
      text: `select principal from leasehold.audit where action = 'outbox.giveUp' and target = $1`,
      values: [id],
    })
    expect(rows).toEqual([{ principal: 'ada' }])
  })

  it('refuses what is malformed, and a body that is too large', async () => {
    const wrong = await ask(`${BASE}/outbox/events`, 'ada', { method: 'POST', body: '{"type": 1}' })
    expect(wrong.status).toBe(422)
    // The parser of the framework refuses the rest before the API sees it.
    if (name.includes('parser')) return
    const broken = await ask(`${BASE}/outbox/events`, 'ada', { method: 'POST', body: '{' })
    expect(broken.status).toBe(422)
    const large = JSON.stringify({ type: 'a', payload: 'x'.repeat(2_000_000) })
    const tooLarge = await ask(`${BASE}/outbox/events`, 'ada', { method: 'POST', body: large }).then(
      ({ status }) => status,
      // The server may close the connection before the client has sent all of it.
      () => 'closed',
    )
    expect([413, 'closed']).toContain(tooLarge)
    expect((await ask(`${BASE}/overview`, 'ada')).status).toBe(200)
  })

  it('streams live updates until the client leaves', async () => {
    const leaving = new AbortController()
    const response = await ask(`${BASE}/live`, 'grace', { signal: leaving.signal })
    expect(response.headers.get('content-type')).toBe('text/event-stream')
    let text = ''
    const decoder = new TextDecoder()
    for await (const chunk of response.body ?? []) {
      text += decoder.decode(chunk, { stream: true })
      if (text.includes('event: overview')) break
    }
    expect(text).toContain('event: overview')
    leaving.abort()
  })
})
