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

/** What is serious in light and in dark, as text: a failing test shows the element. */
async function seriousFindings(page: Page): Promise<string[]> {
  // Sent over the debugger of the browser, which the content security policy of the page does not concern.
  const debuggerOf = await page.context().newCDPSession(page)
  await debuggerOf.send('Runtime.evaluate', { expression: axe.source })
  const findings: string[] = []
  for (const colorScheme of COLOR_SCHEMES) {
    await page.emulateMedia({ colorScheme })
    const { result } = await debuggerOf.send('Runtime.evaluate', {
      expression: `axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => JSON.stringify(violations))`,
      awaitPromise: true,
      returnByValue: true,
    })
    const violations = JSON.parse(String(result.value)) as Found[]
    const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical')
    for (const { id, nodes } of serious)
      for (const { html, failureSummary = '' } of nodes)
        findings.push(`${id} in ${colorScheme}: ${html}\n${failureSummary}`)
  }
  await debuggerOf.detach()
  return findings
}

/** How wide the page is, in light and in dark. */
async function widths(page: Page): Promise<number[]> {
  const found: number[] = []
  for (const colorScheme of COLOR_SCHEMES) {
    await page.emulateMedia({ colorScheme })
    const html = page.locator('html')
    found.push(await html.evaluate((element) => Number(Reflect.get(element, 'scrollWidth'))))
  }
  return found
}

const COLOR_SCHEMES = ['light', 'dark'] as const
const DESKTOP = { width: 1280, height: 900 }
const PHONE = { width: 360, height: 740 }

describe.each([
  ['a desktop', DESKTOP],
  ['a phone', PHONE],
] as const)('in light and in dark, on %s', (_, viewport) => {
  const fits = [viewport.width, viewport.width]

  it('no page has a serious finding, and none is wider than the screen', async () => {
    const page = await open('/', { viewport })
    const findings: Record<string, readonly string[]> = {}
    for (const path of paths) {
      await page.goto(`${url()}${path}`)
      await page.locator('main h1, main .empty').first().waitFor()
      await expect.poll(async () => page.locator('main .reading').count()).toBe(0)
      const found = await seriousFindings(page)
      if (found.length > 0) findings[path] = found
      expect([path, ...(await widths(page))]).toEqual([path, ...fits])
    }
    expect(findings).toEqual({})
  })

  it('fits the screen while the live updates are not connected', async () => {
    const page = await open('/', { viewport })
    await page.route('**/api/v1/live', async (route) => route.abort())
    await page.goto(`${url()}/outbox`)
    await page.getByRole('button', { name: /^Connecting/ }).waitFor()
    expect(await widths(page)).toEqual(fits)
  })

  it('neither the login nor a dialog has a serious finding', async () => {
    const login = await open('/', { as: null, viewport })
    await login.getByRole('button', { name: 'Sign in' }).waitFor()
    expect(await seriousFindings(login)).toEqual([])
    const page = await open('/outbox?status=DEAD', { viewport })
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
