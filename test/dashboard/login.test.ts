/** Signing in to the dashboard with a key, and out of it. */
import { expect, it } from 'vitest'
import { useDashboard } from '../support/browser.ts'

const { db, open, url, keys } = useDashboard({ instance: { name: 'staging', color: '#b00020' } })

it('says what is wrong with a key that does not exist, and lets a right one in, to the page that was asked for', async () => {
  const page = await open('/outbox?status=DEAD', { as: null })
  await page.getByText('staging').waitFor()
  await page.getByLabel('Key').fill('lhk_wrong')
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('alert').getByText('KEY_INVALID').waitFor()
  await page.getByLabel('Key').fill(keys.operate)
  await page.getByLabel('Key').press('Enter')
  await page.getByRole('heading', { name: 'Outbox' }).waitFor()
  expect(page.url()).toBe(`${url()}/outbox?status=DEAD`)
  await page.getByText('role: operate').waitFor()
  // No script of the page can read the cookie.
  expect(await page.evaluate('document.cookie')).toBe('')
  expect(await page.evaluate('JSON.stringify([localStorage, sessionStorage])')).not.toContain('lhk_')
})

it('ends the session when a person signs out', async () => {
  const page = await open('/outbox', { as: 'admin' })
  await page.getByRole('button', { name: 'Sign out' }).click()
  await page.getByRole('button', { name: 'Sign in' }).waitFor()
  expect((await page.request.get(`${url()}/api/v1/overview`)).status()).toBe(401)
  await page.goto(`${url()}/outbox`)
  await page.getByRole('button', { name: 'Sign in' }).waitFor()
})

it('shows the login on an open page when its session expires', async () => {
  const page = await open('/outbox', { as: 'read' })
  await page.getByRole('heading', { name: 'Outbox' }).waitFor()
  await db.query({ text: `update leasehold.api_sessions set expires_at = now() - interval '1 second'` })
  // The live updates notice it, and nobody has to click.
  await page.getByRole('button', { name: 'Sign in' }).waitFor()
  await page.getByLabel('Key').fill(keys.read)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('heading', { name: 'Outbox' }).waitFor()
  await page.getByRole('button', { name: /^Live/ }).waitFor()
})

it('shows a person who may only read the data without a button that changes it, and the API refuses it anyway', async () => {
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload) values ('login.read', '{}')`,
  })
  const page = await open('/outbox?type=login.read', { as: 'read' })
  const row = page.locator('tbody tr')
  await row.waitFor()
  expect(await page.getByRole('group', { name: /^Change/ }).count()).toBe(0)
  const id = (await row.getAttribute('data-id')) ?? ''
  await row.getByRole('link').click()
  await page.getByRole('heading', { name: 'Payload' }).waitFor()
  for (const name of ['Retry now', 'Give up', 'Replay', 'Unblock'])
    expect(await page.getByRole('button', { name }).count()).toBe(0)
  const refused = await page.request.post(`${url()}/api/v1/outbox/events/${id}/give-up`, {
    data: { reason: 'I should not' },
    headers: { 'sec-fetch-site': 'same-origin' },
  })
  expect(refused.status()).toBe(403)
  expect(await refused.json()).toMatchObject({ code: 'ROLE_TOO_LOW' })
})

it('shows a person of one tenant only the pages of a tenant', async () => {
  const page = await open('/changes', { as: 'tenantRead' })
  await page.getByRole('heading', { name: 'Changes' }).waitFor()
  await page.locator('.tenant', { hasText: 'acme' }).waitFor()
  const pages = await page.getByRole('navigation', { name: 'Pages' }).getByRole('link').allTextContents()
  expect(pages).toEqual(['Webhooks', 'Changes', 'Audit'])
})
