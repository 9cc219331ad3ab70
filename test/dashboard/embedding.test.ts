/** The dashboard in servers of other frameworks, behind their login, at a path of its own, in a browser. */
import { type Api, type Caller, createDashboard } from 'leasehold/server'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createOutbox } from '../../src/outbox/index.ts'
import { type Database, openDatabase } from '../../src/postgres/index.ts'
import { useDashboard } from '../support/browser.ts'
import {
  BASE,
  inExpress,
  inFastify,
  inHono,
  type Running,
  type StartFramework,
  userOf,
} from '../support/frameworks.ts'

const { db, databaseUrl, context } = useDashboard()
const outbox = createOutbox()

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

const frameworks: readonly (readonly [string, StartFramework])[] = [
  ['Express', inExpress],
  ['Fastify', inFastify],
  ['Hono', inHono],
]

describe.each(frameworks)('the dashboard in %s', (name, start) => {
  let server: Running
  beforeAll(async () => {
    server = await start(dashboard)
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
