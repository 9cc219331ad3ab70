/** The outbox in the dashboard: found, replayed, given up, and explained. */
import { beforeEach, describe, expect, it } from 'vitest'
import { createOutbox } from '../../src/outbox/index.ts'
import { dead, retry } from '../../src/worker/index.ts'
import { filterBy, untilRows, useDashboard } from '../support/browser.ts'
import { recording, useRelays } from '../support/running-relay.ts'

const { databaseUrl, db, open } = useDashboard()
const startRelay = useRelays(databaseUrl)
const outbox = createOutbox()

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox' })
})

async function write(type: string, count: number, orderingKey?: string): Promise<string[]> {
  const events = Array.from({ length: count }, (_, index) => ({
    type,
    payload: { number: index },
    ...(orderingKey === undefined ? {} : { orderingKey }),
  }))
  const written = await outbox.enqueue(db, events)
  return written.map(({ id }) => id)
}

/** As a relay leaves them that gives up. */
async function makeDead(ids: readonly string[], error: string, parked = false): Promise<void> {
  for (const status of ['CLAIMED', 'DEAD'])
    await db.query({
      text: `update leasehold.outbox set status = $2::text, lock_token = lock_token + ($2 = 'CLAIMED')::int,
  claimed_by = case $2 when 'CLAIMED' then 'gone' end, claimed_at = case $2 when 'CLAIMED' then now() end,
  locked_until = case $2 when 'CLAIMED' then now() + interval '30 s' end,
  dead_at = case $2 when 'DEAD' then now() end, attempts = attempts + 1, last_error = $3, parked = $2 = 'DEAD' and $4
where id = any ($1::bigint[])`,
      values: [ids, status, error, parked],
    })
}

describe('the list of events', () => {
  it('shows a new event without loading the page again', async () => {
    const page = await open('/outbox?type=live.one')
    await page.getByText('No event matches these filters.').waitFor()
    const [id] = await write('live.one', 1)
    await page.locator(`tr[data-id="${id}"]`).waitFor()
  })

  it('keeps its filters in the address, and finds by state, type, key, error and id', async () => {
    const dead = await write('filter.dead', 2)
    await makeDead(dead, 'connection refused by 10.0.0.7')
    await write('filter.other', 1, 'customer 7')
    const page = await open('/outbox')
    await page.getByRole('button', { name: 'DEAD' }).click()
    // Without Enter, the list follows when nothing is typed any more.
    await page.getByLabel('Error contains').fill('REFUSED')
    await page.waitForURL((url) => url.searchParams.get('error') === 'REFUSED')
    expect(new URL(page.url()).searchParams.get('status')).toBe('DEAD')
    await untilRows(page, 2)
    await page.reload()
    await untilRows(page, 2)
    expect(await page.getByLabel('Error contains').inputValue()).toBe('REFUSED')
    await page.getByRole('button', { name: 'Clear filters' }).click()
    await filterBy(page, 'Ordering key', 'customer 7')
    await untilRows(page, 1)
    await page.getByText('filter.other').waitFor()
  })

  it('replays everything that matches, with a count first and progress after', async () => {
    const ids = await write('bulk.replay', 230)
    await makeDead(ids, 'broker away')
    const page = await open('/outbox?status=DEAD&type=bulk.replay')
    await page.getByRole('button', { name: 'Replay…' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.locator('.matched', { hasText: '230' }).waitFor()
    await dialog.getByLabel('Reason, for the audit').fill('the broker is back')
    await dialog.getByRole('button', { name: 'Replay 230' }).click()
    await dialog.getByText('finished').waitFor()
    expect(await dialog.locator('.changed').textContent()).toBe('230')
    // The list is empty now, and the result is still to be seen.
    await page.getByText('No event matches these filters.').waitFor()
    expect(await dialog.getByText('finished').count()).toBe(1)
    const { rows } = await db.query<{ count: number }>({
      text: `select count(*)::int as count from leasehold.outbox where event_type = 'bulk.replay' and status = 'PENDING'`,
    })
    expect(rows[0]?.count).toBe(230)
  })

  it('says why a change concerns nothing of what matches', async () => {
    await write('bulk.pending', 2)
    const page = await open('/outbox?type=bulk.pending')
    await page.getByRole('button', { name: 'Give up…' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByText(/only those at which an attempt has failed/).waitFor()
    expect(await dialog.locator('.matched').textContent()).toBe('0')
    await page.keyboard.press('Escape')
    await page.getByLabel('Select all rows of this page').check()
    await page.getByRole('button', { name: 'Give up…' }).click()
    await dialog.locator('.matched', { hasText: '2' }).waitFor()
  })
})

describe('the page of an event', () => {
  it('explains a parked key by the event that parked it, and unblocks it', async () => {
    let isBroken = true
    const publisher = recording((event) =>
      isBroken &&
      event.payload !== null &&
      event.type === 'parked' &&
      (event.payload as { number: number }).number === 0
        ? dead('HTTP 400')
        : undefined,
    )
    const ids = await write('parked', 2, 'customer 9')
    const { events } = await startRelay({ publisher, onFailure: 'park' })
    await events.next('settled', ({ outcome }) => outcome === 'dead')
    const page = await open(`/outbox/events/${ids[1]}`)
    const reason = page.locator('[data-code="keyParked"]')
    await reason.getByText(`by event ${ids[0]}`).waitFor()
    await reason.getByText('leasehold outbox unblock').waitFor()

    await page.goto(new URL('/outbox/keys', page.url()).href)
    await page.getByRole('cell', { name: 'customer 9' }).waitFor()
    await page
      .getByRole('row', { name: /customer 9/ })
      .getByText('parked', { exact: true })
      .waitFor()
    isBroken = false
    await page.getByRole('button', { name: 'Unblock' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Reason, for the audit').fill('the receiver is repaired')
    await dialog.getByRole('button', { name: 'Unblock' }).click()
    await page.getByText('No key is held up.').waitFor()
    await expect.poll(() => publisher.published.map(({ id }) => id)).toEqual([ids[0], ids[0], ids[1]])
  })

  it('shows each attempt in its timeline: who, under which token, and how it ended', async () => {
    let failures = 0
    const publisher = recording(() =>
      (failures += 1) <= 2 ? retry({ error: `failure ${failures}` }) : undefined,
    )
    const [id] = await write('timeline', 1)
    const page = await open(`/outbox/events/${id}`)
    const { runtime, events } = await startRelay({ publisher, retry: { firstMs: 1, longestMs: 1 } })
    await events.next('settled', ({ outcome }) => outcome === 'done')
    const timeline = page.locator('.timeline li')
    await expect.poll(async () => timeline.count()).toBe(4)
    const texts = await timeline.allTextContents()
    expect(texts[0]).toContain('Published')
    const token = /token (\d+)/.exec(texts[2] ?? '')?.[1] ?? 'missing'
    expect(texts[0]).toContain(`by ${runtime.id}, token ${BigInt(token) + 2n}`)
    expect(texts[1]).toContain('failure 2')
    expect(texts[2]).toContain('failure 1')
    expect(texts[3]).toContain('Written')
  })

  it('replays a dead event, and shows that it is published', async () => {
    let isBroken = true
    const publisher = recording(() => (isBroken ? dead('no such address') : undefined))
    const [id] = await write('once more', 1)
    const { events } = await startRelay({ publisher })
    await events.next('settled', ({ outcome }) => outcome === 'dead')
    const page = await open(`/outbox/events/${id}`)
    await page.locator('.page-header').getByText('DEAD').waitFor()
    isBroken = false
    await page.getByRole('button', { name: 'Replay' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Reason, for the audit').fill('corrected')
    await dialog.getByRole('button', { name: 'Replay' }).click()
    await page.locator('.page-header').getByText('PUBLISHED').waitFor()
    await page.locator('.timeline').getByText('Replayed').waitFor()
  })

  it('has no buttons for a key that may only read, and the API refuses it anyway', async () => {
    const ids = await write('read only', 1)
    await makeDead(ids, 'broken')
    const page = await open(`/outbox/events/${ids[0]}`, { as: 'read' })
    await page.locator('.page-header').getByText('DEAD').waitFor()
    expect(await page.getByRole('button', { name: 'Replay' }).count()).toBe(0)
    const status = await page.evaluate(async (id) => {
      const response = await fetch(`/api/v1/outbox/events/${id}/replay`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: '{"reason":"because"}',
      })
      return response.status
    }, ids[0])
    expect(status).toBe(403)
    await page.goto(new URL('/outbox?status=DEAD', page.url()).href)
    await page.getByRole('cell', { name: 'read only' }).first().waitFor()
    expect(await page.getByRole('button', { name: 'Replay…' }).count()).toBe(0)
    expect(await page.getByRole('checkbox').count()).toBe(0)
  })
})

describe('the overview', () => {
  it('counts what is written and published while it is open', async () => {
    const page = await open('/')
    const pending = page.locator('.figure', { hasText: 'Events pending' }).locator('.value')
    const before = Number(await pending.textContent())
    await write('overview', 7)
    await expect.poll(async () => Number(await pending.textContent())).toBe(before + 7)
    await startRelay({ publisher: recording() })
    await expect.poll(async () => Number(await pending.textContent())).toBe(0)
    await page.locator('.chart', { hasText: 'Rows done' }).locator('canvas').waitFor()
    await page.getByText('Oldest snapshot').waitFor()
  })

  it('stands still while it is paused, and goes on afterwards', async () => {
    const page = await open('/')
    const pending = page.locator('.figure', { hasText: 'Events pending' }).locator('.value')
    const before = Number(await pending.textContent())
    await page.getByRole('button', { name: /Pause live updates/ }).click()
    await page.getByText('Paused').waitFor()
    await write('paused', 3)
    // A page that is not paused knows of them.
    const other = await open('/')
    const shown = other.locator('.figure', { hasText: 'Events pending' }).locator('.value')
    await expect.poll(async () => Number(await shown.textContent())).toBe(before + 3)
    expect(Number(await pending.textContent())).toBe(before)
    await page.getByRole('button', { name: /Continue live updates/ }).click()
    await expect.poll(async () => Number(await pending.textContent())).toBe(before + 3)
  })
})
