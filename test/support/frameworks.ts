/** Servers of other frameworks, with an application at `/` and the given handler at `BASE`, behind the application's login. */
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { serve } from '@hono/node-server'
import express from 'express'
import fastify from 'fastify'
import { Hono } from 'hono'
import { type Api, toNodeHandler } from 'leasehold/server'

export const BASE = '/ops/leasehold'
const APPLICATION = 'the application'
const NO_USER = 'log in first'

export interface Running {
  readonly url: string
  readonly stop: () => Promise<void>
}

/** Starts the framework's server with the handler, which may be that of the API or of the dashboard. */
export type StartFramework = (handler: Api) => Promise<Running>

/** What the login of Express or Fastify has added to the request. */
export function userOf(incoming: unknown): unknown {
  return typeof incoming === 'object' && incoming !== null ? Reflect.get(incoming, 'user') : undefined
}

/** The login of the application: it knows its users by a cookie. */
function userIn(cookie: string | null | undefined): string | undefined {
  return /\buser=(\w+)/.exec(cookie ?? '')?.[1]
}

async function fetchLoggedIn(handler: Api, request: Request): Promise<Response> {
  const user = userIn(request.headers.get('cookie'))
  return user === undefined ? new Response(NO_USER, { status: 401 }) : handler.fetch(request, { user })
}

export const inHono: StartFramework = async (handler) =>
  hono((app) => app.all(`${BASE}/*`, async (c) => fetchLoggedIn(handler, c.req.raw)))

export const mountedInHono: StartFramework = async (handler) =>
  // Hono takes the path off, unless it is told not to.
  hono((app) =>
    app.mount(BASE, async (request) => fetchLoggedIn(handler, request), { replaceRequest: false }),
  )

/**
 * Next.js itself runs in nextjs-example.test.ts. Here app/ops/leasehold/[...path]/route.ts exports the handlers by
 * method. Next.js calls them with a Web Request and an object that has the parameters of the path.
 */
export const inNextRoute: StartFramework = async (handler) => {
  const route = async (request: Request, _context: unknown): Promise<Response> =>
    fetchLoggedIn(handler, request)
  const exported: Readonly<Record<string, typeof route>> = {
    GET: route,
    POST: route,
    PATCH: route,
    PUT: route,
    DELETE: route,
  }
  return hono((app) =>
    app.all(`${BASE}/*`, async (c) => {
      const method = exported[c.req.method] ?? route
      const path = c.req.path.slice(BASE.length + 1).split('/')
      return method(c.req.raw, { params: Promise.resolve({ path }) })
    }),
  )
}

export const inExpress: StartFramework = async (handler) => expressWith(handler, express())

export const behindBodyParser: StartFramework = async (handler) =>
  expressWith(handler, express().use(express.json()))

export const inFastify: StartFramework = async (handler) => {
  const app = fastify()
  app.get('/', async () => APPLICATION)
  await app.register(async (scope) => {
    const handle = toNodeHandler(handler)
    // The API reads the body itself.
    scope.removeAllContentTypeParsers()
    scope.addContentTypeParser('*', (_request, _body, done) => done(null))
    scope.addHook('onRequest', async (request, reply) => {
      const user = userIn(request.headers.cookie)
      if (user === undefined) await reply.code(401).send(NO_USER)
      else Object.assign(request.raw, { user })
    })
    for (const path of [BASE, `${BASE}/*`])
      scope.all(path, (request, reply) => {
        reply.hijack()
        handle(request.raw, reply.raw)
      })
  })
  await app.listen({ port: 0, host: '127.0.0.1' })
  return {
    url: urlOf(app.server),
    async stop() {
      app.server.closeAllConnections()
      await app.close()
    },
  }
}

async function hono(mount: (app: Hono) => unknown): Promise<Running> {
  const app = new Hono()
  app.get('/', (c) => c.text(APPLICATION))
  mount(app)
  return listening(serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }) as Server)
}

async function expressWith(handler: Api, app: express.Express): Promise<Running> {
  app.get('/', (_request, response) => void response.send(APPLICATION))
  app.use(BASE, (request, response, next) => {
    const user = userIn(request.headers.cookie)
    if (user === undefined) {
      response.status(401).send(NO_USER)
      return
    }
    Object.assign(request, { user })
    next()
  })
  app.use(BASE, toNodeHandler(handler))
  return listening(createServer(app).listen(0, '127.0.0.1'))
}

async function listening(server: Server): Promise<Running> {
  if (!server.listening) await once(server, 'listening')
  return {
    url: urlOf(server),
    async stop() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}

function urlOf(server: Server): string {
  const address = server.address()
  return `http://127.0.0.1:${typeof address === 'object' && address !== null ? address.port : 0}`
}
