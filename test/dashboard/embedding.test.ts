/** The dashboard in servers of other frameworks, behind their login, at a path of its own, in a browser. */
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { serve } from '@hono/node-server'
import express from 'express'
import fastify from 'fastify'
import { Hono } from 'hono'
import { type Api, type Caller, createDashboard, toNodeHandler } from 'leasehold/server'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createOutbox } from '../../src/outbox/index.ts'
import { type Database, openDatabase } from '../../src/postgres/index.ts'
import { useDashboard } from '../support/browser.ts'

const { db, databaseUrl, context } = useDashboard()
const outbox = createOutbox()

const BASE = '/ops/leasehold'
const USERS: Readonly<Record<string, Caller>> = {
  ada: { principal: 'ada', role: 'operate', tenant: null },
  grace: { principal: 'grace', role: 'read', tenant: null },
}

let own: Database
let dashboard: Api
beforeAll(() => {
  own = openDatabase({ url: databaseUrl })
  dashboard = createDashboard({
    db: own,
    basePath: BASE,
    requestsPerSecond: 100_000,
    burst: 100_000,
    authorize: (_request, { incoming, user = userOf(incoming) }) => USERS[String(user)],
  })
})
afterAll(async () => {
  await dashboard.stop()
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
    'Express',
    async () => {
      const app = express()
      app.use(BASE, (request, response, next) => {
        const user = userIn(request.headers.cookie)
        if (user === undefined) {
          response.status(401).send('log in first')
          return
        }
        Object.assign(request, { user })
        next()
      })
      app.use(BASE, toNodeHandler(dashboard))
      return listening(createServer(app))
    },
  ],
  [
    'Fastify',
    async () => {
      const app = fastify()
      await app.register(async (scope) => {
        const handle = toNodeHandler(dashboard)
        // The API reads the body itself.
        scope.removeAllContentTypeParsers()
        scope.addContentTypeParser('*', (_request, _body, done) => done(null))
        scope.addHook('onRequest', async (request, reply) => {
          const user = userIn(request.headers.cookie)
          if (user === undefined) await reply.code(401).send('log in first')
          else Object.assign(request.raw, { user })
        })
        for (const path of [BASE, `${BASE}/*`])
          scope.all(path, (request, reply) => {
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
    'Hono',
    async () => {
      const app = new Hono()
      app.all(`${BASE}/*`, async (c) => {
        const user = userIn(c.req.header('cookie'))
        if (user === undefined) return c.text('log in first', 401)
        return dashboard.fetch(c.req.raw, { user })
      })
      return listening(serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }) as Server)
    },
  ],
]

describe.each(frameworks)('the dashboard in %s', (name, start) => {
  let server: Running
  beforeAll(async () => {
    server = await start()
    return async () => server.stop()
  })

  it('shows pages, follows changes and acts below its base path, as the user of the application', async () => {
    const browser = await context()
    const page = await browser.newPage()
    const outside: string[] = []
    page.on('request', (request) => {
      if (!request.url().startsWith(`${server.url}${BASE}`)) outside.push(request.url())
    })
    const type = `in.${name.toLowerCase()}`
    const refused = await page.goto(`${server.url}${BASE}/outbox`)
    expect([refused?.status(), await refused?.text()]).toEqual([401, 'log in first'])

    await browser.addCookies([{ name: 'user', value: 'ada', url: server.url }])
    await page.goto(`${server.url}${BASE}/outbox?type=${type}`)
    await page.getByText('No event matches these filters.').waitFor()
    await page.getByText('ada').waitFor()
    expect(await page.getByRole('button', { name: 'Sign out' }).count()).toBe(0)
    await page.getByRole('button', { name: /^Live/ }).waitFor()

    // A live update, and then the page of the event.
    const [written] = await outbox.enqueue(db, [{ type, payload: { from: name } }])
    const id = written?.id ?? ''
    await page.locator(`tr[data-id="${id}"]`).getByRole('link').click()
    await page.waitForURL(`${server.url}${BASE}/outbox/events/${id}`)
    await page.reload()
    await page.getByLabel('Payload').getByText(name).waitFor()
    await page.getByRole('button', { name: 'Give up' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Reason, for the audit').fill(`a test in ${name}`)
    await dialog.getByRole('button', { name: 'Give up' }).click()
    await page.locator('.page-header .state', { hasText: 'DEAD' }).waitFor()
    await page.getByRole('link', { name: 'Audit' }).click()
    await page.waitForURL(`${server.url}${BASE}/audit`)
    const entry = page.locator('tbody tr', { hasText: `a test in ${name}` })
    expect(await entry.locator('td[data-label=Who]').textContent()).toBe('ada')
    await page.getByRole('link', { name: 'Overview' }).click()
    await page.getByText('Events pending').waitFor()
    expect(outside).toEqual([])
  })

  it('says that a person is not signed in any more when the login of the application has ended', async () => {
    const browser = await context()
    await browser.addCookies([{ name: 'user', value: 'grace', url: server.url }])
    const page = await browser.newPage()
    await page.goto(`${server.url}${BASE}/outbox`)
    await page.getByRole('heading', { name: 'Outbox' }).waitFor()
    await browser.clearCookies()
    await page.getByRole('link', { name: 'Audit' }).click()
    await page.getByRole('heading', { name: 'You are not signed in' }).waitFor()
    expect(await page.getByLabel('Key').count()).toBe(0)
  })
})
