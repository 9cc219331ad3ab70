/** What all pages have in common: their titles, the clock, dialogs, long texts, and a server that does not answer. */
import { expect, it } from 'vitest'
import { untilRows, useDashboard } from '../support/browser.ts'
import { makeEvents } from '../support/outbox-rows.ts'

const { db, keys, open, url } = useDashboard()

it('names the page in the tab, so that several can be told apart', async () => {
  const [id = ''] = await makeEvents(db, 1, { type: 'title' })
  const page = await open('/outbox?type=title')
  await untilRows(page, 1)
  expect(await page.title()).toBe('Outbox · Leasehold')
  await page.getByRole('link', { name: id, exact: true }).click()
  await expect.poll(async () => page.title()).toBe(`Event ${id} · Leasehold`)
  await page.goBack()
  await expect.poll(async () => page.title()).toBe('Outbox · Leasehold')
})

it('shows how long ago something was, also where the clock of the browser is wrong', async () => {
  await makeEvents(db, 1, { type: 'clock', agoMs: 7_200_000 })
  const page = await open('/outbox?type=none')
  await page.clock.install({ time: Date.now() + 36_000_000 })
  await page.goto(`${url()}/outbox?type=clock`)
  await page.getByText(/^2 h( \d min)? ago$/).waitFor()
})

it('keeps a dialog with a form open when the mouse is pressed or released beside it', async () => {
  const page = await open('/keys')
  await page.getByRole('button', { name: 'Create a key' }).click()
  const name = page.getByLabel('Name, for the audit')
  await name.fill('a long name')
  await name.hover()
  await page.mouse.down()
  await page.mouse.move(5, 5)
  await page.mouse.up()
  await page.mouse.click(5, 5)
  expect(await name.inputValue()).toBe('a long name')
  await page.keyboard.press('Escape')
  await name.waitFor({ state: 'detached' })
  await page.keyboard.press('?')
  const help = page.getByRole('dialog', { name: 'Shortcuts' })
  await help.waitFor()
  await page.mouse.click(5, 5)
  await help.waitFor({ state: 'detached' })
})

it('shows every column of a list in which one text is very long', async () => {
  await makeEvents(db, 1, {
    type: 'long'.repeat(50),
    key: `repeat('key', 80)`,
    error: 'wide',
    status: 'DEAD',
  })
  const page = await open('/outbox?error=wide')
  await untilRows(page, 1)
  for (const title of ['Failed', 'Written', 'What happens']) {
    const box = await page.getByRole('columnheader', { name: title }).boundingBox()
    expect((box?.x ?? Infinity) + 50, title).toBeLessThan(1280)
  }
})

it('reads again by itself what the server did not answer', async () => {
  const page = await open('/outbox?type=none')
  await page.getByText('No event matches these filters.').waitFor()
  let isAway = true
  await page.route('**/api/v1/doctor*', async (route) => (isAway ? route.abort() : route.continue()))
  await page.getByRole('link', { name: 'Doctor' }).click()
  await page.getByText('The server does not answer.').waitFor()
  isAway = false
  await page.getByRole('heading', { name: 'Checks' }).waitFor()
})

it('leaves the connections of the browser to the tab that is looked at', async () => {
  const page = await open('/outbox?type=hidden')
  await page.getByRole('button', { name: /^Live/ }).waitFor()
  const look = async (isHidden: boolean): Promise<void> =>
    page.evaluate(
      `Object.defineProperty(document, 'hidden', { configurable: true, value: ${isHidden} })
document.dispatchEvent(new Event('visibilitychange'))`,
    )
  const ended = page.waitForEvent('requestfailed', (request) => request.url().endsWith('/live'))
  await look(true)
  await ended
  const [id] = await makeEvents(db, 1, { type: 'hidden' })
  const opened = page.waitForRequest(/\/live$/)
  await look(false)
  await opened
  await page.locator(`tr[data-id="${id}"]`).waitFor()
  await page.getByRole('button', { name: /^Live/ }).waitFor()
})

it('asks by itself where a proxy does not let the live updates through', async () => {
  const page = await open('/outbox?type=polled', { as: null })
  await page.route('**/api/v1/live', async (route) => route.fulfill({ status: 502, body: 'no streams here' }))
  await page.getByLabel('Key').fill(keys.read)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByTitle('This page asks every 3 seconds').waitFor()
  await page.getByText('No event matches these filters.').waitFor()
  const [id] = await makeEvents(db, 1, { type: 'polled' })
  await page.locator(`tr[data-id="${id}"]`).waitFor()
})
