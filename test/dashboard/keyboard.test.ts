/** The dashboard without a mouse. */
import { expect, it } from 'vitest'
import { untilRows, useDashboard } from '../support/browser.ts'
import { makeEvents } from '../support/outbox-rows.ts'

const { db, open, url } = useDashboard()

it('goes to a page by the palette: Ctrl K, a word, Enter', async () => {
  const page = await open('/')
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
  await page.keyboard.press('Control+k')
  await page.getByRole('combobox').waitFor()
  await page.keyboard.type('dead')
  expect(await page.getByRole('option').allTextContents()).toEqual(['Outbox: dead events'])
  await page.keyboard.press('Enter')
  await page.waitForURL(`${url()}/outbox?status=DEAD`)
  await page.getByRole('heading', { name: 'Outbox' }).waitFor()
  expect(await page.getByRole('dialog').count()).toBe(0)
  // An event by its number.
  const [id = ''] = await makeEvents(db, 1)
  await page.keyboard.press('Control+k')
  await page.keyboard.type(id)
  await page.keyboard.press('Enter')
  await page.waitForURL(`${url()}/outbox/events/${id}`)
  await page.keyboard.press('Control+k')
  await page.getByRole('combobox').waitFor()
  await page.keyboard.press('Escape')
  await page.getByRole('combobox').waitFor({ state: 'detached' })
  expect(page.url()).toBe(`${url()}/outbox/events/${id}`)
})

it('goes to a page by two keys, and `?` lists those that work on it', async () => {
  const page = await open('/')
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
  await page.keyboard.press('g')
  await page.keyboard.press('o')
  await page.getByRole('heading', { name: 'Outbox' }).waitFor()
  await page.keyboard.press('?')
  const help = page.getByRole('dialog', { name: 'Shortcuts' })
  for (const title of ['Outbox', 'Search', 'List the shortcuts', 'Pause or continue live updates'])
    await help.getByText(title, { exact: true }).waitFor()
  // Keys belong to the dialog while it is open.
  await page.keyboard.press('g')
  await page.keyboard.press('h')
  expect(page.url()).toBe(`${url()}/outbox`)
  await page.keyboard.press('Escape')
  await help.waitFor({ state: 'detached' })
  await page.keyboard.press('/')
  expect(await page.evaluate('document.activeElement.tagName')).toBe('INPUT')
})

it('moves in a list with j and k, selects with x, and opens with Enter', async () => {
  const ids = (await makeEvents(db, 3, { type: 'keyboard.list' })).toReversed()
  const page = await open('/outbox?type=keyboard.list')
  await untilRows(page, 3)
  const active = async (): Promise<string | null> => page.locator('tr.active').getAttribute('data-id')
  await page.keyboard.press('j')
  expect(await active()).toBe(ids[0])
  await page.keyboard.press('j')
  await page.keyboard.press('j')
  await page.keyboard.press('j')
  expect(await active()).toBe(ids[2])
  await page.keyboard.press('k')
  expect(await active()).toBe(ids[1])
  await page.keyboard.press('x')
  await page.getByRole('group', { name: 'Change 1 selected' }).waitFor()
  expect(await page.getByLabel(`Select ${ids[1]}`).isChecked()).toBe(true)
  await page.keyboard.press('Enter')
  await page.waitForURL(`${url()}/outbox/events/${ids[1]}`)
  await page.goBack()
  await untilRows(page, 3)
})

it('shows where the focus is, on every control that Tab reaches', async () => {
  const page = await open('/outbox')
  await page.getByRole('heading', { name: 'Outbox' }).waitFor()
  const seen = new Set<string>()
  for (let pressed = 0; pressed < 30; pressed += 1) {
    await page.keyboard.press('Tab')
    const { name, style, width } = (await page.evaluate(`(() => {
      const element = document.activeElement
      const { outlineStyle, outlineWidth } = getComputedStyle(element)
      return { name: element.tagName + ' ' + (element.textContent || element.name), style: outlineStyle, width: outlineWidth }
    })()`)) as { name: string; style: string; width: string }
    if (name.startsWith('BODY')) continue
    seen.add(name)
    expect([name, style, width]).toEqual([name, 'solid', '2px'])
  }
  expect(seen.size).toBeGreaterThan(15)
})

it('puts the focus back to where it was when a dialog is closed', async () => {
  const page = await open('/keys')
  const button = page.getByRole('button', { name: 'Create a key' })
  await button.focus()
  await page.keyboard.press('Enter')
  const name = page.getByLabel('Name, for the audit')
  await name.waitFor()
  await page.keyboard.press('Escape')
  await name.waitFor({ state: 'detached' })
  expect(await page.evaluate('document.activeElement.textContent')).toBe('Create a key')
})
