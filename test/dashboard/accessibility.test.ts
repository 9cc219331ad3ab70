/** Every page of the dashboard, examined by axe-core: in light and dark, on a desktop and on a phone. */
import axe from 'axe-core'
import type { Page } from 'playwright-core'
import { beforeAll, describe, expect, it } from 'vitest'
import { createWebhooks, endpoints } from '../../src/webhooks/index.ts'
import { createSync } from '../../src/sync/index.ts'
import { useDashboard } from '../support/browser.ts'
import { makeEvents } from '../support/outbox-rows.ts'
import { SECRET_KEY } from '../support/webhook-endpoints.ts'

const { db, open, url, keys } = useDashboard({ instance: { name: 'staging', color: '#b00020' } })

let paths: readonly string[] = []

/** Something on every page. */
beforeAll(async () => {
  const [dead = ''] = await makeEvents(db, 2, {
    status: 'DEAD',
    key: `'k'`,
    parked: true,
    error: 'the ledger refuses it',
  })
  await makeEvents(db, 3, { status: 'PUBLISHED' })
  await makeEvents(db, 3, { key: `'k'`, attempts: 1, error: 'a timeout' })
  await makeEvents(db, 1, { status: 'CLAIMED' })
  const managed = endpoints(db, { secretKey: SECRET_KEY, network: { allow: ['127.0.0.0/8'] } })
  const by = { principal: 'test', reason: 'for the test' }
  const { endpoint } = await managed.create({ url: 'http://127.0.0.1:9/hook', tenant: 'acme' }, by)
  await createWebhooks().send(db, { type: 'order.paid', payload: {}, tenant: 'acme' })
  const { rows } = await db.query<{ id: string }>({
    text: 'select id::text as id from leasehold.webhook_outbox limit 1',
  })
  const { jobId } = await createSync().enqueue(db, 'catalogue', { matrixId: 'books' })
  const started = await fetch(`${url()}/api/v1/outbox/events/changes`, {
    method: 'POST',
    headers: { authorization: `Bearer ${keys.operate}`, 'content-type': 'application/json' },
    body: JSON.stringify({ action: 'give-up', filter: { type: 'nothing' }, reason: 'for the test' }),
  })
  const { id: change } = (await started.json()) as { id: string }
  paths = [
    '/',
    '/outbox',
    `/outbox/events/${dead}`,
    '/outbox/keys',
    '/webhooks',
    `/webhooks/endpoints/${endpoint.id}`,
    '/webhooks/deliveries',
    `/webhooks/deliveries/${rows[0]?.id ?? ''}`,
    '/sync',
    `/sync/jobs/${jobId}`,
    '/reconcile',
    '/leases',
    '/workers',
    '/changes',
    `/changes/${change}`,
    '/audit',
    '/keys',
    '/doctor',
    '/no/such/page',
  ]
})

interface Found {
  readonly id: string
  readonly impact?: string | null
  readonly help: string
  readonly nodes: readonly { readonly html: string; readonly failureSummary?: string }[]
}

/** What is serious, as text: a failing test shows the element. */
async function seriousFindings(page: Page): Promise<string[]> {
  // Sent over the debugger of the browser, which the content security policy of the page does not concern.
  const debuggerOf = await page.context().newCDPSession(page)
  await debuggerOf.send('Runtime.evaluate', { expression: axe.source })
  const { result } = await debuggerOf.send('Runtime.evaluate', {
    expression: `axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => JSON.stringify(violations))`,
    awaitPromise: true,
    returnByValue: true,
  })
  await debuggerOf.detach()
  const violations = JSON.parse(String(result.value)) as Found[]
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) =>
      nodes.map(({ html, failureSummary = '' }) => `${id}: ${html}\n${failureSummary}`),
    )
}

const DESKTOP = { width: 1280, height: 900 }
const PHONE = { width: 360, height: 740 }

describe.each([
  ['light', 'a desktop', DESKTOP],
  ['dark', 'a desktop', DESKTOP],
  ['light', 'a phone', PHONE],
  ['dark', 'a phone', PHONE],
] as const)('in %s, on %s', (colorScheme, _, viewport) => {
  it('no page has a serious finding, and none is wider than the screen', async () => {
    const page = await open('/', { colorScheme, viewport })
    const findings: Record<string, readonly string[]> = {}
    for (const path of paths) {
      await page.goto(`${url()}${path}`)
      await page.locator('main h1, main .empty').first().waitFor()
      await expect.poll(async () => page.locator('main .reading').count()).toBe(0)
      const found = await seriousFindings(page)
      if (found.length > 0) findings[path] = found
      const width = await page
        .locator('html')
        .evaluate((element) => Number(Reflect.get(element, 'scrollWidth')))
      expect([path, width]).toEqual([path, viewport.width])
    }
    expect(findings).toEqual({})
  })

  it('fits the screen while the live updates are not connected', async () => {
    const page = await open('/', { colorScheme, viewport })
    await page.route('**/api/v1/live', async (route) => route.abort())
    await page.goto(`${url()}/outbox`)
    await page.getByRole('button', { name: /^Connecting/ }).waitFor()
    const width = await page
      .locator('html')
      .evaluate((element) => Number(Reflect.get(element, 'scrollWidth')))
    expect(width).toBe(viewport.width)
  })

  it('neither the login nor a dialog has a serious finding', async () => {
    const login = await open('/', { as: null, colorScheme, viewport })
    await login.getByRole('button', { name: 'Sign in' }).waitFor()
    expect(await seriousFindings(login)).toEqual([])
    const page = await open('/outbox?status=DEAD', { colorScheme, viewport })
    await page.locator('tbody tr').first().waitFor()
    await page.keyboard.press('Control+k')
    await page.getByRole('combobox').waitFor()
    expect(await seriousFindings(page)).toEqual([])
    await page.keyboard.press('Escape')
    await page.keyboard.press('?')
    await page.getByRole('dialog', { name: 'Shortcuts' }).waitFor()
    expect(await seriousFindings(page)).toEqual([])
    await page.keyboard.press('Escape')
    await page.getByRole('button', { name: 'Replay…' }).click()
    await page.getByRole('dialog').locator('.matched').waitFor()
    expect(await seriousFindings(page)).toEqual([])
    await page.goto(`${url()}/keys`)
    await page.getByRole('button', { name: 'Create a key' }).click()
    await page.getByRole('dialog').waitFor()
    expect(await seriousFindings(page)).toEqual([])
  })
})
