/** Filters of lists: what is typed, and what is pressed right after it. */
import { expect, it } from 'vitest'
import { untilRows, useDashboard } from '../support/browser.ts'
import { makeEvents } from '../support/outbox-rows.ts'

const { db, open, url } = useDashboard()

it('changes what matches a filter that was typed right before the button was pressed', async () => {
  await makeEvents(db, 3, { type: 'pressed.one', status: 'DEAD' })
  await makeEvents(db, 2, { type: 'pressed.two', status: 'DEAD' })
  const page = await open('/outbox?status=DEAD')
  await untilRows(page, 5)
  await page.getByLabel('Type').fill('pressed.two')
  // Between press and release the page has no reason to move the button away.
  const button = page.getByRole('button', { name: 'Replay…' })
  await button.hover()
  await page.mouse.down()
  expect(page.url()).toBe(`${url()}/outbox?status=DEAD`)
  await page.mouse.up()
  await page.getByRole('dialog').locator('.matched', { hasText: '2' }).waitFor()
  expect(page.url()).toBe(`${url()}/outbox?status=DEAD&type=pressed.two`)
})

it('opens the row that is pressed while the list is read again', async () => {
  const [, id = ''] = await makeEvents(db, 2, { type: 'moving.one' })
  const page = await open('/outbox?type=moving.one')
  await untilRows(page, 2)
  await page.getByRole('button', { name: /^Live/ }).click()
  await makeEvents(db, 3, { type: 'moving.one' })
  await page.locator(`tr[data-id="${id}"] td`).last().hover()
  await page.mouse.down()
  const read = page.waitForResponse(/events/)
  await page.keyboard.press('.')
  await (await read).finished()
  await page.mouse.up()
  await page.waitForURL(`${url()}/outbox/events/${id}`)
})

it('keeps the rows while those of another filter are read, and a space at the end of what is typed', async () => {
  await makeEvents(db, 1, { type: 'kept.one' })
  const page = await open('/outbox?type=kept.one')
  await untilRows(page, 1)
  let answer = (): void => undefined
  const answered = new Promise<void>((resolve) => {
    answer = resolve
  })
  await page.route(/error=kept/, async (route) => {
    await answered
    await route.continue()
  })
  const field = page.getByLabel('Error contains')
  await field.pressSequentially('kept ')
  await page.waitForURL(/error=kept$/)
  await page.locator('[aria-busy=true] tbody tr').waitFor()
  await field.pressSequentially('text')
  expect(await field.inputValue()).toBe('kept text')
  answer()
  await page.getByText('No event matches these filters.').waitFor()
})

it('forgets what was typed on a page that was left', async () => {
  const page = await open('/audit')
  await page.getByRole('heading', { name: 'Audit' }).waitFor()
  await page.getByRole('link', { name: 'Outbox' }).click()
  await page.getByLabel('Type').fill('left')
  await page.goBack()
  await page.getByRole('heading', { name: 'Audit' }).waitFor()
  await page.getByLabel('Who').fill('ada')
  await page.waitForURL(/principal=ada/)
  expect(new URL(page.url()).searchParams.has('type')).toBe(false)
})
