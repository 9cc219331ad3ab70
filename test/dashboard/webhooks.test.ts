/** Webhooks in the dashboard: endpoints and deliveries, seen, found and changed, with a real dispatcher and receivers. */
import type { Page } from 'playwright-core'
import { describe, expect, it } from 'vitest'
import { send, verify } from '../../src/webhooks/index.ts'
import { type OpenOptions, filterBy, untilRows, useDashboard } from '../support/browser.ts'
import { type Received, useReceivers } from '../support/receiver.ts'
import { useDispatchers } from '../support/running-dispatcher.ts'
import { addEndpoint, makeEndpoint } from '../support/webhook-endpoints.ts'
import { makeDeliveries } from '../support/webhook-rows.ts'

const { databaseUrl, db, open, keys, url } = useDashboard()
const startReceiver = useReceivers()
const startDispatcher = useDispatchers(databaseUrl)

/** Each test has a tenant of its own, so that it sees its own rows only. */
let tenants = 0
function newTenant(): string {
  tenants += 1
  return `tenant-${tenants}`
}

async function sendTo(tenant: string, type: string, payload: unknown = { n: 1 }): Promise<void> {
  await send(db, { type, payload, tenant })
}

async function isSignedWith(received: Received | undefined, secret: string): Promise<boolean> {
  if (received === undefined) return false
  return verify(received, secret).then(
    () => true,
    () => false,
  )
}

/** Fills in the reason of the dialog that is open, and presses its button. */
async function confirm(page: Page, button: string): Promise<void> {
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Reason, for the audit').fill('a test')
  await dialog.getByRole('button', { name: button, exact: true }).click()
}

async function openEndpoint(id: string, options?: OpenOptions): Promise<Page> {
  return open(`/webhooks/endpoints/${id}`, options)
}

describe('the list of deliveries', () => {
  it('shows what is sent and delivered without loading the page again', async () => {
    const tenant = newTenant()
    const receiver = await startReceiver()
    await addEndpoint(db, receiver.url, { tenant })
    const page = await open(`/webhooks/deliveries?tenant=${tenant}`)
    await page.getByText('No delivery matches these filters.').waitFor()
    await sendTo(tenant, 'live.happened')
    await page.locator('tbody tr', { hasText: 'pending' }).waitFor()
    await startDispatcher()
    await page.locator('tbody tr', { hasText: 'delivered' }).waitFor()
    await untilRows(page, 1)
  })

  it('finds by state, type, tenant, endpoint, error and id, and keeps the filters in the address', async () => {
    const tenant = newTenant()
    const one = await makeEndpoint(db, { tenant })
    const other = await makeEndpoint(db, { tenant })
    const [failed = ''] = await makeDeliveries(db, one, 2, {
      status: 'failed',
      type: 'filter.failed',
      code: 'timeout',
      error: 'no answer from 10.0.0.7',
    })
    await makeDeliveries(db, other, 1, { type: 'filter.pending' })
    const page = await open('/webhooks/deliveries')
    await filterBy(page, 'Tenant', tenant)
    await untilRows(page, 3)
    await page.getByRole('button', { name: 'failed', exact: true }).click()
    await untilRows(page, 2)
    await filterBy(page, 'Error contains', 'ANSWER FROM')
    await filterBy(page, 'Id', failed)
    await untilRows(page, 1)
    await page.reload()
    await untilRows(page, 1)
    expect(await page.getByLabel('Error contains').inputValue()).toBe('ANSWER FROM')
    await page.getByRole('button', { name: 'Clear filters' }).click()
    await filterBy(page, 'Endpoint', other)
    await untilRows(page, 1)
    await filterBy(page, 'Endpoint', '')
    await filterBy(page, 'Type', 'filter.failed')
    await untilRows(page, 2)
  })

  it('replays everything that matches, and the receiver gets it', async () => {
    const receiver = await startReceiver()
    const { id } = await addEndpoint(db, receiver.url, { tenant: newTenant() })
    await makeDeliveries(db, id, 120, { status: 'failed', type: 'bulk.replay', error: 'it was down' })
    await makeDeliveries(db, id, 1, { status: 'failed', type: 'bulk.other', error: 'it was down' })
    await startDispatcher()
    const page = await open('/webhooks/deliveries?status=failed&type=bulk.replay')
    await page.getByRole('button', { name: 'Replay…' }).click()
    await page.locator('.matched', { hasText: '120' }).waitFor()
    await confirm(page, 'Replay 120')
    await page.getByRole('dialog').getByText('finished').waitFor()
    expect(await page.locator('.changed').textContent()).toBe('120')
    await receiver.reached(120)
    expect(receiver.received.length).toBe(120)
  })

  it('cancels those that were selected', async () => {
    const endpoint = await makeEndpoint(db, { tenant: newTenant() })
    const [first = '', second = '', third = ''] = await makeDeliveries(db, endpoint, 3)
    const page = await open(`/webhooks/deliveries?endpoint=${endpoint}`)
    await page.getByLabel(`Select ${first}`).check()
    await page.getByLabel(`Select ${third}`).check()
    await page.getByRole('button', { name: 'Cancel…' }).click()
    await page.locator('.matched', { hasText: '2' }).waitFor()
    await confirm(page, 'Cancel 2')
    await page.getByRole('dialog').getByText('finished').waitFor()
    await page.getByRole('dialog').getByRole('button', { name: 'Close' }).last().click()
    for (const [id, state] of [
      [first, 'failed'],
      [second, 'pending'],
      [third, 'failed'],
    ] as const)
      await page.locator(`tr[data-id="${id}"]`, { hasText: state }).waitFor()
  })
})

describe('the list of endpoints', () => {
  it('finds by tenant, state and event type, and says why an endpoint is disabled', async () => {
    const tenant = newTenant()
    const orders = await makeEndpoint(db, { tenant, eventTypes: ['order.*'] })
    const invoices = await makeEndpoint(db, {
      tenant,
      eventTypes: ['invoice.created'],
      disabledReason: 'it is being moved',
    })
    await makeDeliveries(db, orders, 2, { status: 'failed', error: 'refused' })
    await makeDeliveries(db, orders, 3)
    const page = await open(`/webhooks?tenant=${tenant}`)
    await untilRows(page, 2)
    const row = page.locator(`tr[data-id="${orders}"]`)
    await row.locator('td[data-label="Pending"]', { hasText: '3' }).waitFor()
    await row.locator('td[data-label="Failed"]', { hasText: '2' }).waitFor()
    await row.getByRole('img', { name: 'Attempts in the last 24 hours' }).waitFor()
    await page.getByRole('button', { name: 'disabled' }).click()
    await untilRows(page, 1)
    await page.locator(`tr[data-id="${invoices}"]`, { hasText: 'it is being moved' }).waitFor()
    await page.getByRole('button', { name: 'Clear filters' }).click()
    await filterBy(page, 'Tenant', tenant)
    await filterBy(page, 'Receives the type', 'order.paid')
    await untilRows(page, 1)
    await page.locator(`tr[data-id="${orders}"]`).waitFor()
  })

  it('creates an endpoint, and shows its secret once', async () => {
    const tenant = newTenant()
    const receiver = await startReceiver()
    await startDispatcher()
    const page = await open(`/webhooks?tenant=${tenant}`)
    await page.getByRole('button', { name: 'New endpoint…' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('URL, to which events are POSTed').fill(receiver.url)
    await dialog.getByLabel('Tenant').fill(tenant)
    await dialog.getByLabel('Event types').fill('order.paid, invoice.*')
    await dialog.getByText('Limits, order, headers').click()
    await dialog.getByLabel('Per second at most').fill('50')
    await dialog.getByLabel('Headers').fill('Authorization: Bearer abc')
    await dialog.getByRole('button', { name: 'Create' }).click()
    const secret = (await dialog.locator('.secret code').textContent()) ?? ''
    expect(secret).toMatch(/^whsec_/)
    await dialog.getByRole('link', { name: 'Open the endpoint' }).click()
    await page.getByText('at most 50 per second').waitFor()
    await page.getByText('order.paid, invoice.*').waitFor()
    expect(await page.content()).not.toContain(secret)
    await sendTo(tenant, 'invoice.created')
    await receiver.reached(1)
    expect(await isSignedWith(receiver.received[0], secret)).toBe(true)
    expect(receiver.received[0]?.headers.authorization).toBe('Bearer abc')
  })

  it('shows what is wrong with the values of a new endpoint', async () => {
    const page = await open('/webhooks')
    await page.getByRole('button', { name: 'New endpoint…' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('URL, to which events are POSTed').fill('https://10.0.0.7/hook')
    await dialog.getByRole('button', { name: 'Create' }).click()
    await dialog.getByRole('alert').getByText('10.0.0.7').waitFor()
  })
})

describe('an endpoint', () => {
  it('gets a test event, with a link to its delivery', async () => {
    const receiver = await startReceiver()
    const { id, secret } = await addEndpoint(db, receiver.url, { tenant: newTenant() })
    await startDispatcher()
    const page = await openEndpoint(id)
    await page.getByRole('button', { name: 'Send a test event' }).click()
    await receiver.reached(1)
    expect(await isSignedWith(receiver.received[0], secret)).toBe(true)
    await page.getByRole('status').getByRole('link').click()
    await page.locator('.page-header', { hasText: 'delivered' }).waitFor()
    await page.locator('.timeline', { hasText: 'Attempt 1: HTTP 204' }).waitFor()
    await page.getByText('webhook.test').first().waitFor()
  })

  it('gets a new secret, with which a receiver verifies, and keeps the old one for a while', async () => {
    const receiver = await startReceiver()
    const { id, secret: old } = await addEndpoint(db, receiver.url, { tenant: newTenant() })
    const page = await openEndpoint(id)
    await page.getByRole('button', { name: 'Rotate secret…' }).click()
    await confirm(page, 'Rotate')
    const dialog = page.getByRole('dialog')
    const secret = (await dialog.locator('.secret code').textContent()) ?? ''
    await dialog.getByText('signed with the old one as well').waitFor()
    await dialog.getByRole('button', { name: 'Done' }).click()
    await page.locator('dd', { hasText: 'valid until' }).waitFor()
    expect(await page.content()).not.toContain(secret)
    await startDispatcher()
    await page.getByRole('button', { name: 'Send a test event' }).click()
    await receiver.reached(1)
    expect(await isSignedWith(receiver.received[0], secret)).toBe(true)
    expect(await isSignedWith(receiver.received[0], old)).toBe(true)

    await page.getByRole('button', { name: 'Rotate secret…' }).click()
    await dialog.getByLabel('The old one is valid').fill('0')
    await confirm(page, 'Rotate')
    const next = (await dialog.locator('.secret code').textContent()) ?? ''
    await dialog.getByRole('button', { name: 'Done' }).click()
    await expect
      .poll(async () => {
        const before = receiver.received.length
        await page.getByRole('button', { name: 'Send a test event' }).click()
        await receiver.reached(before + 1)
        const last = receiver.received.at(-1)
        return [await isSignedWith(last, next), await isSignedWith(last, secret)]
      })
      .toEqual([true, false])
  })

  it('whose circuit is open says so, and its deliveries say why they wait; enabling it closes the circuit', async () => {
    const tenant = newTenant()
    const receiver = await startReceiver(() => 500)
    const { id } = await addEndpoint(db, receiver.url, { tenant, concurrency: 1 })
    await startDispatcher({ circuitBreaker: { failureThreshold: 2, openMs: 600_000, maxOpenMs: 600_000 } })
    for (let count = 0; count < 5; count += 1) await sendTo(tenant, 'circuit.opens')
    const page = await open(`/webhooks?tenant=${tenant}`)
    const row = page.locator(`tr[data-id="${id}"]`)
    await row.getByText('circuit open').waitFor()
    await row.getByText(/tried again in (9|10) min/).waitFor()
    await row.getByRole('link', { name: receiver.url }).click()
    await page.getByText('The circuit is open: 2 attempts in a row have failed').waitFor()
    await page.locator('section', { hasText: 'Last failed attempts' }).getByText('http500').first().waitFor()
    const waiting = page.locator('section', { hasText: 'Newest deliveries' }).locator('tbody tr').first()
    await waiting.getByRole('link').first().click()
    await page.locator('[data-code="circuitOpen"]').waitFor()
    await page.goBack()
    receiver.answer(() => 204)
    await page.getByRole('button', { name: 'Enable' }).click()
    await confirm(page, 'Enable')
    await page.locator('.page-header').getByText('ok', { exact: true }).waitFor()
    await waiting.getByText('delivered').first().waitFor()
  })

  it('is disabled, and enabled again', async () => {
    const tenant = newTenant()
    const endpoint = await makeEndpoint(db, { tenant })
    const page = await openEndpoint(endpoint)
    await page.getByRole('button', { name: 'Disable' }).click()
    await confirm(page, 'Disable')
    await page.getByText('It has been disabled since').waitFor()
    await sendTo(tenant, 'disabled.gets.nothing')
    expect(await page.getByRole('button', { name: 'Disable' }).count()).toBe(0)
    await page.getByRole('button', { name: 'Enable' }).click()
    await confirm(page, 'Enable')
    await page.locator('.page-header').getByText('ok', { exact: true }).waitFor()
    await page.getByText('Nothing was sent to it lately.').waitFor()
  })

  it('is changed, and only in the fields that were changed', async () => {
    const endpoint = await makeEndpoint(db, { tenant: newTenant(), eventTypes: ['order.paid'] })
    const page = await openEndpoint(endpoint)
    await page.getByRole('button', { name: 'Change…' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByText('Limits, order, headers').click()
    await dialog.getByLabel('At a time at most').fill('3')
    // Somebody else changes another field meanwhile.
    await db.query({
      text: `update leasehold.webhook_endpoints set event_types = '{order.shipped}' where id = $1`,
      values: [endpoint],
    })
    await confirm(page, 'Change')
    await page.getByText('at most 3 at a time').waitFor()
    await page.locator('dd', { hasText: 'order.shipped' }).waitFor()
  })

  it('gets everything that has failed since a time once more', async () => {
    const receiver = await startReceiver()
    const { id } = await addEndpoint(db, receiver.url, { tenant: newTenant() })
    await makeDeliveries(db, id, 4, { status: 'failed', type: 'recover.old', agoMs: 3 * 86_400_000 })
    await makeDeliveries(db, id, 7, { status: 'failed', type: 'recover.new', agoMs: 3_600_000 })
    await startDispatcher()
    const page = await openEndpoint(id)
    await page.getByRole('button', { name: 'Recover…' }).click()
    // Of the last day, unless something else is given.
    await page.locator('.matched', { hasText: /^7$/ }).waitFor()
    await page.getByLabel('Everything that has failed since').fill('2020-01-01T00:00:00')
    await page.locator('.matched', { hasText: /^11$/ }).waitFor()
    await confirm(page, 'Replay 11')
    await page.getByRole('dialog').getByText('finished').waitFor()
    await receiver.reached(11)
  })

  it('is deleted', async () => {
    const tenant = newTenant()
    const page = await openEndpoint(await makeEndpoint(db, { tenant }))
    await page.getByRole('button', { name: 'Delete' }).click()
    await confirm(page, 'Delete')
    await page.waitForURL('**/webhooks')
    await page.getByLabel('Tenant').fill(tenant)
    await page.getByText('No endpoint matches these filters.').waitFor()
  })
})

describe('a delivery', () => {
  it('is retried, cancelled and replayed', async () => {
    const endpoint = await makeEndpoint(db, { tenant: newTenant() })
    const [id = ''] = await makeDeliveries(db, endpoint, 1, { agoMs: -3_600_000 })
    const page = await open(`/webhooks/deliveries/${id}`)
    await page.getByRole('button', { name: 'Retry now' }).click()
    await confirm(page, 'Retry now')
    await page.getByText(`Delivery ${id} is due.`).waitFor()
    await page.getByRole('button', { name: 'Cancel delivery' }).click()
    await confirm(page, 'Cancel delivery')
    await page.locator('.page-header').getByText('failed').waitFor()
    await page.getByRole('button', { name: 'Replay' }).click()
    await confirm(page, 'Replay')
    await page.locator('.page-header').getByText('pending').waitFor()
  })

  it('shows every attempt with its token, status, error and response, and nothing in them runs', async () => {
    const tenant = newTenant()
    const hostile = `</pre><script>globalThis.owned = 1</script><img src=x onerror="globalThis.owned = 2">`
    const receiver = await startReceiver((_request, response) => {
      response.writeHead(503, { 'content-type': 'text/html' }).end(hostile)
    })
    await addEndpoint(db, receiver.url, { tenant, description: hostile })
    await startDispatcher()
    await sendTo(tenant, 'hostile.payload', { text: hostile, [hostile]: true })
    const page = await open(`/webhooks?tenant=${tenant}`)
    await page.getByText(hostile).waitFor()
    await page.goto(`${url()}/webhooks/deliveries?tenant=${tenant}`)
    await page.locator('tbody tr', { hasText: '503' }).click()
    const attempt = page.locator('.timeline li', { hasText: 'Attempt 1: HTTP 503' })
    await attempt.getByText('token 1').waitFor()
    await attempt.getByText(hostile).waitFor()
    expect(await page.locator('pre[aria-label="Body"]').textContent()).toContain(
      '<script>globalThis.owned = 1',
    )
    expect(await page.evaluate(() => 'owned' in globalThis)).toBe(false)
    expect(await page.locator('main script, main img').count()).toBe(0)
  })
})

it('shows those who may only read no buttons, and the API refuses them', async () => {
  const tenant = newTenant()
  const endpoint = await makeEndpoint(db, { tenant })
  const [id = ''] = await makeDeliveries(db, endpoint, 1, { status: 'failed' })
  const page = await open(`/webhooks?tenant=${tenant}`, { as: 'read' })
  await untilRows(page, 1)
  const inMain = page.locator('main').getByRole('button')
  expect(await inMain.allTextContents()).toEqual(['enabled', 'disabled', 'Clear filters'])
  await page.goto(`${url()}/webhooks/endpoints/${endpoint}`)
  await untilRows(page, 1)
  expect(await inMain.allTextContents()).toEqual(['copy'])
  await page.goto(`${url()}/webhooks/deliveries/${id}`)
  await page.locator('.timeline').waitFor()
  await page.locator('[data-code]').first().waitFor()
  expect(new Set(await inMain.allTextContents())).toEqual(new Set(['copy']))
  await page.goto(`${url()}/webhooks/deliveries?tenant=${tenant}`)
  await untilRows(page, 1)
  expect(await page.locator('.bulk-bar, tbody input').count()).toBe(0)
  for (const path of [`deliveries/${id}/replay`, `endpoints/${endpoint}/disable`]) {
    const response = await fetch(`${url()}/api/v1/webhooks/${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${keys.read}`, 'content-type': 'application/json' },
      body: '{"reason": "a test"}',
    })
    expect(response.status).toBe(403)
  }
})

it('lets no site show the portal in a frame unless portalOrigins names it', async () => {
  const response = await fetch(`${url()}/portal`)
  expect(response.headers.get('content-security-policy')).toContain("frame-ancestors 'none'")
})
