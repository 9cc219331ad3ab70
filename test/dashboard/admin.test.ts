/** Changes, the audit, keys and the doctor in the dashboard. */
import { describe, expect, it } from 'vitest'
import { createKey, revokeKey } from '../../src/operations/api-keys.ts'
import { createOutbox, unblock } from '../../src/outbox/index.ts'
import { filterBy, untilRows, useDashboard } from '../support/browser.ts'
import { makeEvents } from '../support/outbox-rows.ts'

const { db, open, url, keys } = useDashboard()
const outbox = createOutbox()

/** As a program sends it. */
async function send(method: string, path: string, key: string, body?: object): Promise<Response> {
  return fetch(`${url()}/api/v1${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
}

describe('changes', () => {
  it('says how a change is started where there is none', async () => {
    const page = await open('/changes')
    await page.getByText('Nobody has changed many rows at once yet.').waitFor()
    await page.getByText('leasehold outbox replay --status DEAD').waitFor()
  })

  it('shows a running change with its progress, filter, reason and author, and cancels it', async () => {
    await makeEvents(db, 300, { type: 'change.slow', attempts: 1 })
    const page = await open('/changes')
    const started = await send('POST', '/outbox/events/changes', keys.operate, {
      action: 'give-up',
      filter: { type: 'change.slow' },
      rate: 1,
      reason: 'they were written twice',
    })
    expect(started.status).toBe(202)
    const row = page.locator('tbody tr', { hasText: 'they were written twice' })
    await row.getByText('running').waitFor()
    await row.getByText('of 300').waitFor()
    await row.getByText('operate', { exact: true }).waitFor()
    await row.getByRole('link').click()
    await page.getByRole('heading', { name: /outbox.giveUp/ }).waitFor()
    await page.getByLabel('Filter').getByText('change.slow').waitFor()
    await page.getByText('1 per second').waitFor()
    await page.getByRole('button', { name: 'Cancel the change' }).click()
    await page.locator('.change .state', { hasText: 'cancelled' }).waitFor()
    await page.getByText('Cancelled by').waitFor()
    const { rows } = await db.query<{ left: number }>({
      text: `select count(*)::int as left from leasehold.outbox where event_type = 'change.slow' and status = 'PENDING'`,
    })
    expect(rows[0]?.left).toBeGreaterThan(0)
  })

  it('shows a person who may only read no button, and the API refuses the change anyway', async () => {
    await makeEvents(db, 300, { type: 'change.read', attempts: 1 })
    const started = await send('POST', '/outbox/events/changes', keys.operate, {
      action: 'give-up',
      filter: { type: 'change.read' },
      rate: 1,
      reason: 'for somebody who reads',
    })
    const { id } = (await started.json()) as { id: string }
    const page = await open(`/changes/${id}`, { as: 'read' })
    await page.getByText('for somebody who reads').first().waitFor()
    expect(await page.getByRole('button', { name: 'Cancel the change' }).count()).toBe(0)
    const refused = await page.evaluate(
      async (path) => (await fetch(path, { method: 'POST' })).status,
      `${url()}/api/v1/changes/${id}/cancel`,
    )
    expect(refused).toBe(403)
  })
})

describe('the audit', () => {
  it('finds by author, action, target and time, and keeps the filters in the address', async () => {
    await db.query({
      text: `insert into leasehold.audit (principal, action, target, details, at) values
        ('ada', 'outbox.replay', 'row 1', '{"reason": "the first", "matched": 3}', now() - interval '3 days'),
        ('ada', 'outbox.giveUp', 'row 2', '{"reason": "the second"}', now()),
        ('grace', 'webhooks.cancel', 'row 3', '{"reason": "the third"}', now())`,
    })
    const page = await open('/audit')
    await page.locator('summary', { hasText: 'the third' }).waitFor()
    await filterBy(page, 'Who', 'ada')
    await untilRows(page, 2)
    await filterBy(page, 'Action', 'outbox.*')
    await filterBy(page, 'From', new Date(Date.now() - 86_400_000).toISOString().slice(0, 19))
    await untilRows(page, 1)
    await page.reload()
    await untilRows(page, 1)
    expect(await page.getByLabel('Who').inputValue()).toBe('ada')
    await page.getByRole('button', { name: 'Clear filters' }).click()
    await filterBy(page, 'Target', 'row 1')
    await untilRows(page, 1)
    await page.locator('summary', { hasText: 'the first' }).click()
    await page
      .getByLabel(/Details of entry/)
      .getByText('"matched": 3')
      .waitFor()
    await filterBy(page, 'Target', 'nothing')
    await page.getByText('No entry matches these filters.').waitFor()
  })

  it('turns its pages by a position in the address, and follows new entries on the first', async () => {
    await db.query({
      text: `insert into leasehold.audit (principal, action, target)
        select 'pages', 'page.turned', g.number::text from generate_series(1, 120) as g (number) order by g.number`,
    })
    const page = await open('/audit?principal=pages')
    await untilRows(page, 50)
    const newest = async (): Promise<string | null> =>
      page.locator('tbody td[data-label=Target]').first().textContent()
    expect(await newest()).toBe('120')
    await page.getByRole('button', { name: 'Older' }).click()
    await expect.poll(newest).toBe('70')
    await page.getByRole('button', { name: 'Older' }).click()
    await untilRows(page, 20)
    expect(await page.getByRole('button', { name: 'Older' }).isDisabled()).toBe(true)
    await page.getByRole('button', { name: 'Newest' }).click()
    await expect.poll(newest).toBe('120')
    await db.query({
      text: `insert into leasehold.audit (principal, action, target) values ('pages', 'page.turned', 'live')`,
    })
    // Something that the live updates tell of.
    await outbox.enqueue(db, { type: 'audit.live', payload: {} })
    await expect.poll(newest).toBe('live')
  })
})

describe('keys', () => {
  it('creates a key that is shown once, can be copied, and works', async () => {
    const page = await open('/keys')
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
    await page.getByRole('button', { name: 'Create a key' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Name, for the audit').fill('ada-laptop')
    await dialog.getByLabel('What it may do').selectOption('operate')
    await dialog.getByLabel('Only for one tenant').fill('acme')
    await dialog.getByRole('button', { name: 'Create', exact: true }).click()
    const shown = (await dialog.locator('.new-key code').textContent()) ?? ''
    expect(shown).toMatch(/^lhk_/)
    await dialog.getByRole('button', { name: 'Copy the key' }).click()
    await dialog.getByText('copied').waitFor()
    expect(await page.evaluate('navigator.clipboard.readText()')).toBe(shown)
    const session = await (await send('GET', '/session', shown)).json()
    expect(session).toMatchObject({ principal: 'acme/ada-laptop', role: 'operate', tenant: 'acme' })
    await dialog.getByRole('button', { name: 'Done' }).click()
    const row = page.locator('tbody tr', { hasText: 'ada-laptop' })
    await row.getByText('valid').waitFor()
    await row.getByText('in 89 d').waitFor()
    await page.reload()
    await row.waitFor()
    expect(await page.content()).not.toContain(shown)
  })

  it('says what is wrong with a new key, and keeps what was typed', async () => {
    const page = await open('/keys')
    await page.getByRole('button', { name: 'Create a key' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Name, for the audit').fill('admin')
    await dialog.getByRole('button', { name: 'Create', exact: true }).click()
    await dialog.getByRole('alert').getByText('There is, or was, a key with the name "admin".').waitFor()
    expect(await dialog.getByLabel('Name, for the audit').inputValue()).toBe('admin')
  })

  it('revokes a key after a confirmation, and the API refuses it from then on', async () => {
    const { key } = await createKey(
      db,
      { name: 'lost-phone', role: 'read', tenant: undefined },
      { principal: 'test' },
    )
    expect((await send('GET', '/session', key)).status).toBe(200)
    const page = await open('/keys')
    const row = page.locator('tbody tr', { hasText: 'lost-phone' })
    await row.getByRole('button', { name: 'Revoke' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByText('its sessions end at once').waitFor()
    await dialog.getByRole('button', { name: 'Cancel' }).click()
    expect((await send('GET', '/session', key)).status).toBe(200)
    await row.getByRole('button', { name: 'Revoke' }).click()
    await dialog.getByRole('button', { name: 'Revoke' }).click()
    await row.getByText('revoked').waitFor()
    await row.getByText('by admin').waitFor()
    expect(await row.getByRole('button', { name: 'Revoke' }).count()).toBe(0)
    expect((await send('GET', '/session', key)).status).toBe(401)
  })

  it('shows the login on a page that is open when the key of its session is revoked', async () => {
    const created = await createKey(
      db,
      { name: 'leaver', role: 'admin', tenant: undefined },
      { principal: 'test' },
    )
    const page = await open('/audit', { as: null })
    await page.getByLabel('Key').fill(created.key)
    await page.getByRole('button', { name: 'Sign in' }).click()
    await page.getByRole('heading', { name: 'Audit' }).waitFor()
    await page.getByRole('button', { name: /^Live/ }).waitFor()
    await revokeKey(db, created.id, { principal: 'test' })
    await page.getByRole('button', { name: 'Sign in' }).waitFor()
    expect(await page.getByRole('heading', { name: 'Audit' }).count()).toBe(0)
  })

  it('is there for an admin only', async () => {
    const page = await open('/keys', { as: 'operate' })
    await page.getByRole('alert').getByText('ROLE_TOO_LOW').waitFor()
    expect(await page.getByRole('link', { name: 'Keys' }).count()).toBe(0)
    expect(await page.getByRole('button', { name: 'Create a key' }).count()).toBe(0)
    expect((await send('POST', '/keys', keys.operate, { name: 'mine', role: 'admin' })).status).toBe(403)
  })
})

describe('the doctor', () => {
  it('shows findings first with what repairs them, and examines again when asked', async () => {
    const [id = ''] = await makeEvents(db, 1, {
      key: `'stuck'`,
      status: 'DEAD',
      parked: true,
      error: 'the ledger refuses it',
    })
    await outbox.enqueue(db, { type: 'doctor.waits', payload: {}, orderingKey: 'stuck' })
    const page = await open('/doctor', { as: 'read' })
    const finding = page.locator('.findings li[data-check=rows-held-up]')
    await finding.getByText('warning', { exact: true }).waitFor()
    await finding.getByText(`parked by the event ${id}`).waitFor()
    await finding.getByText('leasehold outbox unblock --replay').waitFor()
    expect(await page.getByText('timeouts of statements and transactions').isVisible()).toBe(true)
    const passed = page.locator('.checks details li').first()
    expect(await passed.isVisible()).toBe(false)
    await page.getByText(/^\d+ passed$/).click()
    expect(await passed.isVisible()).toBe(true)
    await unblock(db, { orderingKey: 'stuck', principal: 'test', reason: 'the test goes on' })
    await page.getByRole('button', { name: 'Examine again' }).click()
    await finding.waitFor({ state: 'detached' })
  })

  it('says that nothing is wrong where that is so', async () => {
    const page = await open('/doctor')
    await page.route('**/api/v1/doctor', async (route) =>
      route.fulfill({ json: { findings: [], checks: [{ id: 'a-check', title: 'a check', ok: true }] } }),
    )
    await page.getByRole('button', { name: /Examin/ }).click()
    await page.getByText('Nothing is wrong.').waitFor()
  })
})
