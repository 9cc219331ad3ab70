/** What the dashboard is sent as, how much it weighs, and that hostile text on it stays text. */
import type { Page } from 'playwright-core'
import { expect, it } from 'vitest'
import { useDashboard } from '../support/browser.ts'
import { makeEvents } from '../support/outbox-rows.ts'

const { db, open, context, url } = useDashboard()

const MAX_PAGE_BYTES = 250 * 1024

it('sends the page with a policy under which no script, style or request of others works', async () => {
  const response = await fetch(`${url()}/outbox`)
  const policy = new Map(
    (response.headers.get('content-security-policy') ?? '').split('; ').map((directive) => {
      const [name = '', ...values] = directive.split(' ')
      return [name, values.join(' ')] as const
    }),
  )
  expect(Object.fromEntries(policy)).toEqual({
    'default-src': "'none'",
    'script-src': "'self'",
    'style-src': "'self'",
    'img-src': "'self' data:",
    'connect-src': "'self'",
    'base-uri': "'none'",
    'form-action': "'none'",
    'frame-ancestors': "'none'",
    'require-trusted-types-for': "'script'",
    'trusted-types': "'none'",
  })
  expect(Object.fromEntries(response.headers)).toMatchObject({
    'cache-control': 'no-store',
    'referrer-policy': 'no-referrer',
    'x-content-type-options': 'nosniff',
    'cross-origin-opener-policy': 'same-origin',
  })
  const html = await response.text()
  // Nothing is in the page itself, and nothing comes from elsewhere.
  expect(html).not.toMatch(/<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=")/)
  expect(html).not.toMatch(/(?:src|href)="(?!\/assets\/)/)
})

it('loads under 250 KB, compressed and to be kept for ever, and nothing from anywhere else', async () => {
  const page = await (await context()).newPage()
  const loaded: {
    readonly path: string
    readonly bytes: number
    readonly headers: Record<string, string>
  }[] = []
  const pending: Promise<void>[] = []
  page.on('requestfinished', (request) => {
    pending.push(
      (async () => {
        const response = await request.response()
        const { responseBodySize } = await request.sizes()
        const { origin, pathname } = new URL(request.url())
        expect(origin).toBe(url())
        if (!pathname.startsWith('/api/'))
          loaded.push({
            path: pathname,
            bytes: responseBodySize,
            headers: (await response?.allHeaders()) ?? {},
          })
      })(),
    )
  })
  await page.goto(url())
  await page.getByRole('button', { name: 'Sign in' }).waitFor()
  await expect
    .poll(() => loaded.filter(({ path }) => path.startsWith('/assets/')).length)
    .toBeGreaterThanOrEqual(2)
  await Promise.all(pending)
  for (const { headers } of loaded.filter(({ path }) => path.startsWith('/assets/')))
    expect(headers).toMatchObject({
      'content-encoding': 'br',
      'cache-control': 'public, max-age=31536000, immutable',
    })
  const bytes = loaded.reduce((sum, each) => sum + each.bytes, 0)
  expect(bytes).toBeGreaterThan(10_000)
  expect(bytes).toBeLessThan(MAX_PAGE_BYTES)
})

const HOSTILE = [
  '<script>globalThis.hacked = 1</script>',
  '<img src=x onerror="globalThis.hacked = 1">',
  'javascript:globalThis.hacked=1',
  '"><svg onload=globalThis.hacked=1>',
  "'; alert(1); //",
  '</pre></td><iframe srcdoc="<script>parent.hacked = 1</script>"></iframe>',
].join(' ')

async function expectHarmless(page: Page): Promise<void> {
  const main = page.locator('main')
  expect(await main.locator('script, img, iframe, svg[onload]').count()).toBe(0)
  expect(await page.locator('a[href^="javascript:" i], [onerror], [onload]').count()).toBe(0)
  expect(await page.locator('html').evaluate(() => Reflect.get(globalThis, 'hacked'))).toBe(undefined)
}

it('shows text of others as text: in types, keys, payloads, headers, errors and the audit', async () => {
  const [parked = ''] = await makeEvents(db, 1, {
    type: HOSTILE,
    key: `'${HOSTILE.replaceAll("'", "''")}'`,
    status: 'DEAD',
    parked: true,
    error: HOSTILE,
  })
  await db.query({
    text: `insert into leasehold.outbox (event_type, ordering_key, payload, headers) values ($1, $1, $2, $3)`,
    values: [HOSTILE, JSON.stringify({ [HOSTILE]: HOSTILE }), JSON.stringify({ [HOSTILE]: HOSTILE })],
  })
  await db.query({
    text: `insert into leasehold.audit (principal, action, target, details) values ($1, $1, $1, $2)`,
    values: [HOSTILE, JSON.stringify({ reason: HOSTILE, [HOSTILE]: HOSTILE })],
  })
  const page = await open('/outbox')
  page.on('dialog', (dialog) => expect.unreachable(`a dialog said ${dialog.message()}`))
  await page.locator('tbody td[data-label=Type]', { hasText: '<script>globalThis' }).first().waitFor()
  await expectHarmless(page)

  await page.locator('tbody tr').first().getByRole('link').first().click()
  await page.getByLabel('Payload').getByText('onerror').waitFor()
  await page.getByLabel('Headers').getByText('onerror').waitFor()
  await expectHarmless(page)

  await page.goto(`${url()}/outbox/events/${parked}`)
  await page.locator('.error-text', { hasText: '<iframe' }).first().waitFor()
  await expectHarmless(page)

  await page.goto(`${url()}/outbox/keys`)
  await page.locator('tbody td[data-label=Error]', { hasText: '<iframe' }).waitFor()
  await expectHarmless(page)
  // A key in an address stays a key.
  await page.locator('tbody td[data-label=Key]').getByRole('link').click()
  await page.waitForURL((address) => address.searchParams.get('orderingKey') === HOSTILE)
  await expectHarmless(page)

  await page.goto(`${url()}/audit`)
  const summary = page.locator('summary', { hasText: '<script>globalThis' })
  await summary.click()
  await page
    .getByLabel(/Details of entry/)
    .getByText('<iframe')
    .first()
    .waitFor()
  await expectHarmless(page)

  await page.goto(`${url()}/doctor`)
  await page.locator('.findings', { hasText: 'javascript:' }).waitFor()
  await expectHarmless(page)
})

it('shows what an address has as text, and refuses what no page understands', async () => {
  const page = await open(`/outbox?type=${encodeURIComponent(HOSTILE)}&status=${encodeURIComponent(HOSTILE)}`)
  await page.getByRole('alert').waitFor()
  await expectHarmless(page)
  await page.goto(`${url()}/outbox/events/${encodeURIComponent(HOSTILE)}`)
  await page.getByRole('alert').waitFor()
  await expectHarmless(page)
  await page.goto(`${url()}/outbox/events/%E0%A4%A`)
  await page.getByText('There is no such page.').waitFor()
  await expectHarmless(page)
})
