/** The rows in flight: who holds what, for how much longer, and what happens when the holder is killed. */
import { beforeAll, beforeEach, expect, it } from 'vitest'
import { leaseTable } from '../../src/lease/index.ts'
import { openLeaseStore } from '../../src/lease/store.ts'
import { createOutbox } from '../../src/outbox/index.ts'
import { outboxTable } from '../../src/outbox/table.ts'
import { filterBy, untilRows, useDashboard } from '../support/browser.ts'
import { useProcesses } from '../support/processes.ts'
import { startWorker } from '../support/worker-process.ts'
import { insertJobs, WORK_DDL, WORK_TABLE } from '../support/work-table.ts'

const hidden = leaseTable({ table: 'private.jobs', claimable: 'true', outcomes: {} })
const { db, databaseUrl, open } = useDashboard({ tables: [leaseTable(WORK_TABLE), hidden] })
const processes = useProcesses()

beforeAll(async () => {
  await db.query({
    text: `${WORK_DDL}; create schema private; create table private.jobs (id int primary key, lease_owner text,
  lease_until timestamptz, lease_token bigint, attempts int, expiries int, last_error text);
grant usage on schema public to leasehold_reader, leasehold_operator;
grant select on public.jobs to leasehold_reader, leasehold_operator`,
  })
})

beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, leasehold.outbox, leasehold.workers restart identity' })
})

async function claimEvents(count: number, leaseMs: number): Promise<void> {
  const events = Array.from({ length: count }, (_, n) => ({ type: 'order.paid', payload: { n } }))
  await createOutbox().enqueue(db, events)
  const store = await openLeaseStore(db, outboxTable(), { owner: 'relay-1' })
  const { claimed } = await store.claim({ limit: count, leaseMs })
  expect(claimed).toHaveLength(count)
}

it('counts a lease down to zero, and shows how the row moves to another worker when its holder is killed', async () => {
  const [id = ''] = await insertJobs(db, 1, 'hold')
  const settings = { leaseMs: 6_000, pollMs: 50 }
  const first = startWorker(processes, { databaseUrl, settings })
  const { token } = await first.heard('holding')
  const { id: firstId } = await first.heard('up')
  const page = await open('/leases')
  const row = page.locator(`tr[data-id="public.jobs ${id}"]`)
  await row.getByRole('link', { name: String(firstId) }).waitFor()
  await row.locator('td[data-label="Token"]', { hasText: String(token) }).waitFor()
  // A bar shrinks, and the figure beside it moves several times a second.
  const seen = new Set<string>()
  await expect
    .poll(async () => seen.add((await row.locator('.left').textContent()) ?? '').size, { interval: 50 })
    .toBeGreaterThan(3)
  expect(await row.locator('.bar span').getAttribute('style')).toMatch(/width: \d+(\.\d+)?%/)

  await first.kill('SIGKILL')
  // Nobody is there to take the row back.
  await row.locator('.countdown.bad', { hasText: 'expired' }).waitFor()

  const second = startWorker(processes, { databaseUrl, settings })
  const { id: secondId } = await second.heard('up')
  await row.getByRole('link', { name: String(secondId) }).waitFor()
  const held = await second.heard('holding')
  await row.locator('td[data-label="Token"]', { hasText: String(held['token']) }).waitFor()
  expect(Number(held['token'])).toBeGreaterThan(Number(token))

  await row.getByRole('button', { name: id }).click()
  const dialog = page.getByRole('dialog')
  await dialog.locator('[data-code="leased"]', { hasText: String(secondId) }).waitFor()
  await page.keyboard.press('Escape')

  await row.getByRole('link', { name: String(secondId) }).click()
  await page.getByRole('heading', { name: String(secondId) }).waitFor()
  await row.locator('.countdown').waitFor()
  second.send('finish')
  await page.getByText('It holds nothing at the moment.').waitFor()
  expect(await second.kill()).toMatchObject({ code: 0 })
})

it('shows a renewal that is late while the lease still runs', async () => {
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, declared, serves)
values ('relay-1', 'h', 1, '0', '{outbox}', '{"outbox": {"leaseMs": 600000}}', '{"outbox": {"table": "leasehold.outbox", "role": "outbox"}}')`,
  })
  await claimEvents(1, 600_000)
  const page = await open('/leases')
  await page.locator('.countdown.good').waitFor()
  // As it would be five minutes later, when it should have been renewed once.
  await db.query({
    text: `update leasehold.outbox set claimed_at = claimed_at - interval '5 min', locked_until = locked_until - interval '5 min'`,
  })
  await page.locator('.countdown.warning', { hasText: 'renewal late' }).waitFor()
})

it('filters by table and worker in the address, names tables it cannot read, and says that there are more', async () => {
  await claimEvents(60, 60_000)
  const [id = ''] = await insertJobs(db, 1)
  const store = await openLeaseStore(db, leaseTable(WORK_TABLE), { owner: 'mailer' })
  await store.claim({ limit: 1, leaseMs: 10_000 })
  const page = await open('/leases')
  await untilRows(page, 50)
  await page.getByText('50 of more are shown.').waitFor()
  await page.getByText('private.jobs cannot be read: permission denied').waitFor()
  await page.getByRole('button', { name: 'public.jobs' }).click()
  await untilRows(page, 1)
  await page.locator(`tr[data-id="public.jobs ${id}"]`).waitFor()
  expect(new URL(page.url()).searchParams.get('table')).toBe('public.jobs')
  await page.reload()
  await untilRows(page, 1)
  await page.getByRole('button', { name: 'Clear filters' }).click()
  await filterBy(page, 'Worker process', 'relay-1')
  await page.getByRole('button', { name: 'Show up to 500' }).click()
  await untilRows(page, 60)
  await page
    .getByRole('link', { name: /^event / })
    .first()
    .click()
  await page.waitForURL(/\/outbox\/events\/\d+$/)
})

it('says what a lease is where nothing is in flight', async () => {
  const page = await open('/leases', { as: 'read' })
  await page.getByText('Nothing is in flight.').waitFor()
})
