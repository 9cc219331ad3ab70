/** The HTTP API in servers of other frameworks, behind their login, at a path of its own. */
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { serve } from '@hono/node-server'
import express from 'express'
import fastify from 'fastify'
import { Hono } from 'hono'
import { type Api, type Caller, createApi, toNodeHandler } from 'leasehold/server'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Database, openDatabase } from '../src/postgres/index.ts'
import { useApi } from './support/api.ts'

const { loginUrl, db } = useApi()

const BASE = '/ops/leasehold'
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

/** What a login of Express has added to the request. */
function userOf(incoming: unknown): unknown {
  return typeof incoming === 'object' && incoming !== null ? Reflect.get(incoming, 'user') : undefined
}

/** The login of an application: it knows its users by a cookie. */
function userIn(cookie: string | null | undefined): string | undefined {
  return /\buser=(\w+)/.exec(cookie ?? '')?.[1]
}

const expressLogin: express.RequestHandler = (request, response, next) => {
  const user = userIn(request.headers.cookie)
  if (user === undefined) {
    response.status(401).send('log in first')
    return
  }
  Object.assign(request, { user })
  next()
}

interface Running {
  readonly url: string
  readonly stop: () => Promise<void>
}

async function listening(server: Server): Promise<Running> {
  if (!server.listening) {
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
  }
  const address = server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  return {
    url: `http://127.0.0.1:${port}`,
    async stop() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}

const frameworks: readonly (readonly [string, () => Promise<Running>])[] = [
  [
    'Hono, as a route',
    async () => {
      const app = new Hono()
      app.get('/', (c) => c.text('the application'))
      app.all(`${BASE}/*`, async (c) => {
        const user = userIn(c.req.header('cookie'))
        if (user === undefined) return c.text('log in first', 401)
        return api.fetch(c.req.raw, { user })
      })
      return listening(serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }) as Server)
    },
  ],
  [
    'Hono, mounted',
    async () => {
      const app = new Hono()
      app.get('/', (c) => c.text('the application'))
      const loggedIn = async (request: Request): Promise<Response> => {
        const user = userIn(request.headers.get('cookie'))
        return user === undefined
          ? new Response('log in first', { status: 401 })
          : api.fetch(request, { user })
      }
      // Hono takes the path off, unless it is told not to.
      app.mount(BASE, loggedIn, { replaceRequest: false })
      return listening(serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }) as Server)
    },
  ],
  [
    'Express',
    async () => {
      const app = express()
      app.get('/', (_request, response) => void response.send('the application'))
      app.use(BASE, expressLogin)
      app.use(BASE, toNodeHandler(api))
      return listening(createServer(app))
    },
  ],
  [
    'Express, behind a parser of bodies',
    async () => {
      const app = express()
      app.use(express.json())
      app.get('/', (_request, response) => void response.send('the application'))
      app.use(BASE, expressLogin)
      app.use(BASE, toNodeHandler(api))
      return listening(createServer(app))
    },
  ],
  [
    'Fastify',
    async () => {
      const app = fastify()
      app.get('/', async () => 'the application')
      await app.register(async (scope) => {
        const handle = toNodeHandler(api)
        // The API reads the body itself.
        scope.removeAllContentTypeParsers()
        scope.addContentTypeParser('*', (_request, _body, done) => done(null))
        scope.addHook('onRequest', async (request, reply) => {
          const user = userIn(request.headers.cookie)
          if (user === undefined) await reply.code(401).send('log in first')
          else Object.assign(request.raw, { user })
        })
        scope.all(`${BASE}/*`, (request, reply) => {
          reply.hijack()
          handle(request.raw, reply.raw)
        })
      })
      await app.listen({ port: 0, host: '127.0.0.1' })
      const { url } = await listening(app.server)
      return {
        url,
        async stop() {
          app.server.closeAllConnections()
          await app.close()
        },
      }
    },
  ],
  [
    'a route handler of Next.js',
    async () => {
      // Next.js itself runs in installed-examples.test.ts. app/ops/leasehold/[...path]/route.ts exports these. Next.js calls them with a Web Request, which it expects a Web
      // Response for; the second argument is an object with the parameters of the path.
      const handler = async (request: Request, _context: unknown): Promise<Response> => {
        const user = userIn(request.headers.get('cookie'))
        return user === undefined
          ? new Response('log in first', { status: 401 })
          : api.fetch(request, { user })
      }
      const exported: Readonly<Record<string, typeof handler>> = {
        GET: handler,
        POST: handler,
        PATCH: handler,
        PUT: handler,
        DELETE: handler,
      }
      const app = new Hono()
      app.get('/', (c) => c.text('the application'))
      app.all(`${BASE}/*`, async (c) => {
        const method = exported[c.req.method] ?? handler
        const path = c.req.path.slice(BASE.length + 1).split('/')
        return method(c.req.raw, { params: Promise.resolve({ path }) })
      })
      return listening(serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }) as Server)
    },
  ],
]

describe.each(frameworks)('the API in %s', (name, start) => {
  let server: Running
  beforeAll(async () => {
    server = await start()
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
