/** The portal: a customer sees one tenant, by a link that works once, also in a frame of another site. */
import { createServer } from 'node:http'
import { once } from 'node:events'
import type { FrameLocator, Page } from 'playwright-core'
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { send, verify } from '../../src/webhooks/index.ts'
import { freePort } from '../support/free-port.ts'
import { untilRows, useDashboard } from '../support/browser.ts'
import { useReceivers } from '../support/receiver.ts'
import { useDispatchers } from '../support/running-dispatcher.ts'
import { addEndpoint } from '../support/webhook-endpoints.ts'
import { makeDeliveries } from '../support/webhook-rows.ts'

const CUSTOMER = 'globex'
const OTHER = 'initech'
/** The page that shows the portal has another host than the server: the browser takes them for two sites. */
const hostPort = await freePort()
const HOST_ORIGIN = `http://localhost:${hostPort}`

const { databaseUrl, db, open, context, keys, url } = useDashboard({
  portalOrigins: [HOST_ORIGIN],
  instance: { name: 'production', color: '#b00020' },
})
const startReceiver = useReceivers()
const startDispatcher = useDispatchers(databaseUrl)

interface Staged {
  readonly endpoint: string
  readonly delivery: string
  readonly url: string
}

const staged: Record<string, Staged> = {}

beforeAll(async () => {
  for (const tenant of [CUSTOMER, OTHER]) {
    const receiver = await startReceiver()
    const { id } = await addEndpoint(db, receiver.url, { tenant, description: `of ${tenant}` })
    const [delivery = ''] = await makeDeliveries(db, id, 2, {
      status: 'failed',
      type: `${tenant}.happened`,
      error: `${tenant} was down`,
    })
    staged[tenant] = { endpoint: id, delivery, url: receiver.url }
  }
})

function of(tenant: string): Staged {
  const found = staged[tenant]
  if (found === undefined) throw new Error(`nothing was staged for ${tenant}`)
  return found
}

async function makeLink(role: 'read' | 'operate'): Promise<string> {
  const response = await fetch(`${url()}/api/v1/portal/links`, {
    method: 'POST',
    headers: { authorization: `Bearer ${keys.operate}`, 'content-type': 'application/json' },
    body: JSON.stringify({ tenant: CUSTOMER, role }),
  })
  const { path } = (await response.json()) as { path: string }
  return `/${path}`
}

async function openPortal(role: 'read' | 'operate'): Promise<Page> {
  const page = await open(await makeLink(role), { as: null })
  await page.locator(`tr[data-id="${of(CUSTOMER).endpoint}"]`).waitFor()
  return page
}

/** The session of the portal, which no other site can read. */
async function bearerOf(page: Page): Promise<string> {
  const { origins } = await page.context().storageState()
  expect(JSON.stringify(origins), 'it ends with the tab').not.toContain('lhs_')
  // The tests are compiled without the types of a browser.
  return page.evaluate<string>(`sessionStorage.getItem('leasehold:portal')`)
}

/** Another page of the portal in the same tab, as if its address had been typed. */
async function type(page: Page, path: string): Promise<void> {
  await page.goto(`${url()}/portal${path}`)
}

describe('the portal of a tenant', () => {
  it('shows the endpoints and deliveries of that tenant, and nothing of another', async () => {
    const page = await openPortal('operate')
    await untilRows(page, 1)
    await page.getByText(`of ${CUSTOMER}`).waitFor()
    expect(await page.getByRole('columnheader', { name: 'Tenant' }).count()).toBe(0)
    const navigation = page.getByRole('navigation', { name: 'Pages' })
    expect(await navigation.getByRole('link').allTextContents()).toEqual(['Webhooks', 'Changes', 'Audit'])
    await page.getByRole('link', { name: 'Deliveries' }).click()
    await untilRows(page, 2)
    await page.getByText(`${CUSTOMER} was down`).first().waitFor()
    const shown = await page.content()
    for (const secret of [OTHER, 'production', 'Leasehold']) expect(shown).not.toContain(secret)
    expect(await page.title()).toBe('Deliveries · Webhooks')
  })

  it('finds nothing of another tenant, and no page of ours, at addresses that are typed', async () => {
    const page = await openPortal('operate')
    await type(page, `/webhooks/endpoints/${of(OTHER).endpoint}`)
    await page
      .getByText(`No endpoint has the id ${of(OTHER).endpoint}`)
      .first()
      .waitFor()
    await type(page, `/webhooks/deliveries/${of(OTHER).delivery}`)
    await page.getByText(`No delivery has the id ${of(OTHER).delivery}`).waitFor()
    await type(page, `/webhooks/deliveries?tenant=${OTHER}`)
    await page.getByText('Nothing was sent to you yet.').waitFor()
    await type(page, `/webhooks/deliveries?endpoint=${of(OTHER).endpoint}`)
    await page.getByText('No delivery matches these filters.').waitFor()
    for (const path of ['/outbox', '/outbox/keys', '/outbox/events/1', '/workers', '/keys']) {
      await type(page, path)
      await page.getByText('There is no such page.').waitFor()
    }
    await type(page, '')
    await page.locator(`tr[data-id="${of(CUSTOMER).endpoint}"]`).waitFor()
  })

  it('has a session that the API limits to the tenant, whatever is asked', async () => {
    const page = await openPortal('operate')
    const bearer = await bearerOf(page)
    const ask = async (method: string, path: string, body?: unknown): Promise<number> => {
      const response = await fetch(`${url()}/api/v1${path}`, {
        method,
        headers: { authorization: `Bearer ${bearer}`, 'content-type': 'application/json' },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      })
      return response.status
    }
    const { endpoint, delivery } = of(OTHER)
    const reason = { reason: 'a test' }
    expect(await ask('GET', `/webhooks/endpoints/${of(CUSTOMER).endpoint}`)).toBe(200)
    expect(await ask('GET', `/webhooks/endpoints/${endpoint}`)).toBe(404)
    expect(await ask('GET', `/webhooks/endpoints/${endpoint}/health`)).toBe(404)
    expect(await ask('GET', `/webhooks/deliveries/${delivery}`)).toBe(404)
    expect(await ask('POST', `/webhooks/deliveries/${delivery}/replay`, reason)).toBe(404)
    expect(await ask('POST', `/webhooks/endpoints/${endpoint}/disable`, reason)).toBe(404)
    expect(await ask('POST', '/portal/links', { tenant: CUSTOMER, role: 'read' })).toBe(403)
    for (const path of ['/overview', '/outbox/events', '/workers', '/keys', '/doctor'])
      expect(await ask('GET', path)).toBe(403)
  })

  it('lets a customer replay everything that matches, of the tenant only', async () => {
    const page = await openPortal('operate')
    await type(page, '/webhooks/deliveries?status=failed')
    await untilRows(page, 2)
    await page.getByRole('button', { name: 'Replay…' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.locator('.matched', { hasText: /^2$/ }).waitFor()
    await dialog.getByLabel('Reason').fill('our server was down')
    await dialog.getByRole('button', { name: 'Replay 2' }).click()
    await dialog.getByText('finished').waitFor()
    const { rows } = await db.query<{ tenant: string; count: number }>({
      text: `select e.tenant, count(*)::int as count from leasehold.webhook_outbox d
join leasehold.webhook_endpoints e on e.id = d.endpoint_id
where d.delivery_status = 'failed' group by e.tenant`,
    })
    expect(rows).toEqual([{ tenant: OTHER, count: 2 }])
    await makeDeliveries(db, of(CUSTOMER).endpoint, 2, { status: 'failed', error: `${CUSTOMER} was down` })
  })

  it('lets a customer create an endpoint, and follow an event to it', async () => {
    const receiver = await startReceiver()
    await startDispatcher()
    const page = await openPortal('operate')
    await page.getByRole('button', { name: 'New endpoint…' }).click()
    const dialog = page.getByRole('dialog')
    expect(await dialog.getByLabel('Tenant').count()).toBe(0)
    await dialog.getByLabel('URL, to which events are POSTed').fill(receiver.url)
    await dialog.getByLabel('Event types').fill('portal.created')
    await dialog.getByRole('button', { name: 'Create' }).click()
    const secret = (await dialog.locator('.secret code').textContent()) ?? ''
    await dialog.getByRole('link', { name: 'Open the endpoint' }).click()
    await page.getByText('Nothing was sent to it yet.').waitFor()
    await send(db, { type: 'portal.created', payload: {}, tenant: CUSTOMER })
    await receiver.reached(1)
    const [received] = receiver.received
    if (received !== undefined) await verify(received, secret)
    // Live, without loading the page again.
    await page.locator('tbody tr', { hasText: 'portal.created' }).getByText('delivered').first().click()
    await page.getByText('Nothing: it was delivered').waitFor()
    await page.locator('.timeline', { hasText: 'Attempt 1: HTTP 204' }).waitFor()
    expect(await page.locator('main').textContent()).not.toMatch(/token/i)
  })

  it('that is read only has no buttons, and the API refuses the rest', async () => {
    const page = await openPortal('read')
    const inMain = page.locator('main').getByRole('button')
    expect(await inMain.allTextContents()).toEqual(['enabled', 'disabled'])
    const { endpoint, delivery } = of(CUSTOMER)
    await type(page, `/webhooks/endpoints/${endpoint}`)
    await page.getByText('at most 10 at a time').waitFor()
    expect(await inMain.allTextContents()).toEqual(['copy'])
    await type(page, `/webhooks/deliveries/${delivery}`)
    await page.getByText('What happens next?').waitFor()
    expect(await inMain.allTextContents()).toEqual(['copy'])
    await type(page, '/webhooks/deliveries')
    await page.locator('tbody tr').first().waitFor()
    expect(await page.locator('.bulk-bar, tbody input').count()).toBe(0)
    const bearer = await bearerOf(page)
    for (const path of [`deliveries/${delivery}/replay`, `endpoints/${endpoint}/disable`]) {
      const response = await fetch(`${url()}/api/v1/webhooks/${path}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${bearer}`, 'content-type': 'application/json' },
        body: '{"reason": "a test"}',
      })
      expect(response.status).toBe(403)
    }
  })
})

describe('a link', () => {
  it('is made by an operator, for a tenant, with a frame to paste', async () => {
    const page = await open('/webhooks', { as: 'operate' })
    await page.getByRole('button', { name: 'Portal link…' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Tenant').fill(CUSTOMER)
    await dialog.getByLabel('Who opens it may').selectOption('operate')
    await dialog.getByLabel('For whom').fill('ada')
    await dialog.getByLabel('minutes').fill('1')
    await dialog.getByRole('button', { name: 'Make the link' }).click()
    const link = (await dialog.locator('.link code').textContent()) ?? ''
    expect(link.startsWith(`${url()}/portal#lhl_`)).toBe(true)
    expect(await dialog.locator('.sample').textContent()).toContain(`<iframe src="${link}"`)
    const portal = await (await context()).newPage()
    await portal.goto(link)
    await portal.getByText(`of ${CUSTOMER}`).waitFor()
    await portal.getByRole('button', { name: 'New endpoint…' }).waitFor()
    const { rows } = await db.query<{ principal: string }>({
      text: `select principal from leasehold.api_sessions where principal like '%ada%'`,
    })
    expect(rows.map(({ principal }) => principal)).toContain('portal:ada')
  })

  it('works once, and says so the second time; the page it opened can be loaded again', async () => {
    const link = await makeLink('read')
    const first = await open(link, { as: null })
    await first.getByText(`of ${CUSTOMER}`).waitFor()
    expect(first.url()).not.toContain('lhl_')
    await first.reload()
    await first.getByText(`of ${CUSTOMER}`).waitFor()
    const second = await open(link, { as: null })
    await second.getByText('This link has ended').waitFor()
    await second.getByText('Links to this page work once').waitFor()
  })

  it('shows an operator who is signed in no more than a customer', async () => {
    const page = await open('/webhooks', { as: 'admin' })
    await page.getByText(`of ${OTHER}`).waitFor()
    await type(page, '')
    await page.getByText('This link has ended').waitFor()
    await page.goto(`${url()}${await makeLink('read')}`)
    // The list arrives as a whole: the endpoint of the other tenant would be there too.
    await page.getByText(`of ${CUSTOMER}`).waitFor()
    expect(await page.content()).not.toContain(`of ${OTHER}`)
  })
})

/** Serves a page of the customer's application that shows the portal in a frame. */
async function serveFrame(source: string, port = hostPort): Promise<string> {
  const server = createServer((_request, response) => {
    response.writeHead(200, { 'content-type': 'text/html' })
    response.end(`<!doctype html><title>Shop</title><h1>Your webhooks</h1>
<iframe src="${source}" title="Webhooks" width="1100" height="700"></iframe>`)
  })
  server.listen(port, 'localhost')
  await once(server, 'listening')
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://localhost:${port}/`
}

describe('in a frame of another site', () => {
  it('works where portalOrigins has its origin, also when changing something', async () => {
    const page = await (await context()).newPage()
    await page.goto(await serveFrame(`${url()}${await makeLink('operate')}`))
    const frame: FrameLocator = page.frameLocator('iframe')
    await frame.getByRole('link', { name: of(CUSTOMER).url }).click()
    await frame.getByRole('button', { name: 'Disable' }).click()
    await frame.getByLabel('Reason').fill('moving')
    await frame.getByRole('dialog').getByRole('button', { name: 'Disable' }).click()
    await frame.getByText('It has been disabled since').waitFor()
    await frame.getByRole('button', { name: 'Enable' }).click()
    await frame.getByLabel('Reason').fill('moved')
    await frame.getByRole('dialog').getByRole('button', { name: 'Enable' }).click()
    await frame.locator('.page-header').getByText('ok', { exact: true }).waitFor()
  })

  it.each([
    ['a page of an origin that portalOrigins does not have', 'another port', '/portal'],
    ['any page that shows the dashboard instead of the portal', 'the same port', '/webhooks'],
  ])('is refused to %s', async (_, where, path) => {
    const port = where === 'another port' ? await freePort() : hostPort
    const page = await (await context()).newPage()
    const refused = page.waitForEvent('console', (message) => message.text().includes('frame-ancestors'))
    await page.goto(await serveFrame(`${url()}${path}`, port))
    await refused
    expect(await page.frameLocator('iframe').getByText('Webhooks').count()).toBe(0)
  })
})
