/** Worker processes, and the settings that they follow while they run. */
import type { Page } from 'playwright-core'
import { beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { leaseTable } from '../../src/lease/index.ts'
import { useDashboard } from '../support/browser.ts'
import { useProcesses } from '../support/processes.ts'
import { startWorker, type WorkerProcess } from '../support/worker-process.ts'
import { insertJobs, jobStates, WORK_DDL, WORK_TABLE } from '../support/work-table.ts'

const { db, databaseUrl, open } = useDashboard({ tables: [leaseTable(WORK_TABLE)] })
const processes = useProcesses()

beforeAll(async () => {
  await db.query({
    text: `${WORK_DDL}; grant usage on schema public to leasehold_reader, leasehold_operator;
grant select on public.jobs to leasehold_reader, leasehold_operator`,
  })
})

beforeEach(async () => {
  await db.query({
    text: 'truncate public.jobs, leasehold.workers, leasehold.settings restart identity',
  })
})

const TELL = ['paused', 'resumed', 'settingsChanged', 'settled'] as const

async function startJobs(
  settings: Readonly<Record<string, number>> = {},
): Promise<{ readonly worker: WorkerProcess; readonly id: string }> {
  const worker = startWorker(processes, { databaseUrl, tell: TELL, settings: { pollMs: 50, ...settings } })
  const { id } = await worker.heard('up')
  return { worker, id: String(id) }
}

/** The panel with the settings of the worker `jobs`. */
function panelOf(page: Page) {
  return page.getByRole('region', { name: 'jobs' })
}

describe('the processes', () => {
  it('are listed while they run, with what they have done, and as stopped afterwards', async () => {
    const page = await open('/workers')
    await page.getByText('No worker process was started yet.').waitFor()
    await page.getByText("import { leaseTable, startRuntime } from 'leasehold'").waitFor()
    await insertJobs(db, 7)
    const { worker, id } = await startJobs({ concurrency: 3 })
    const row = page.locator(`tr[data-id="${id}"]`)
    await row.locator('.state', { hasText: 'alive' }).waitFor()
    await row.getByText(`pid ${worker.pid}`).waitFor()
    await row.getByText('0 / 3').waitFor()
    await row.locator('td[data-label="Done"]', { hasText: /^7$/ }).waitFor()
    await row.getByRole('link', { name: id }).click()
    await page.getByRole('heading', { name: id }).waitFor()
    await page.locator('tr[data-id="public.jobs"] td[data-label="Done"]', { hasText: /^7$/ }).waitFor()
    await page.goBack()
    await worker.kill()
    await row.locator('.state', { hasText: 'stopped' }).waitFor()
    await page.getByRole('button', { name: 'alive' }).click()
    await page.getByText('No process matches these filters.').waitFor()
  })
})

describe('settings', () => {
  it('a worker that is paused on the page claims nothing until it is resumed there', async () => {
    const { worker } = await startJobs()
    const page = await open('/workers?worker=jobs', { as: 'operate' })
    await panelOf(page).getByRole('button', { name: 'Pause' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click()
    await panelOf(page).locator('.state', { hasText: 'paused' }).waitFor()
    await worker.heard('paused', ({ reason }) => reason === 'operator')
    await page.locator('tbody').getByText('jobs paused (operator)').waitFor()

    await insertJobs(db, 3)
    // Processes that start later are paused as well. Meanwhile the first one polled, and left the rows alone.
    const other = await startJobs()
    await other.worker.heard('paused', ({ reason }) => reason === 'operator')
    expect(await jobStates(db)).toEqual({ PENDING: 3 })

    await panelOf(page).getByRole('button', { name: 'Resume' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Resume' }).click()
    await worker.heard('resumed', ({ reason }) => reason === 'operator')
    await expect.poll(async () => jobStates(db)).toEqual({ DONE: 3 })
    await panelOf(page).getByRole('button', { name: 'Pause' }).waitFor()
    const { rows } = await db.query({
      text: `select principal, action, target from leasehold.audit where action = 'settings.change' order by id`,
    })
    expect(rows).toEqual([
      { principal: 'operate', action: 'settings.change', target: 'jobs' },
      { principal: 'operate', action: 'settings.change', target: 'jobs' },
    ])
    await Promise.all([worker.kill(), other.worker.kill()])
  })

  it('more rows run at once after concurrency was raised on the page, and an empty field removes the setting', async () => {
    await insertJobs(db, 5, 'hold')
    const { worker } = await startJobs({ concurrency: 1, prefetch: 0 })
    await worker.heard('holding')
    const page = await open('/workers', { as: 'operate' })
    await panelOf(page).getByRole('button', { name: 'Change settings…' }).click()
    const dialog = page.getByRole('dialog')
    expect(await dialog.getByLabel(/^concurrency/).getAttribute('placeholder')).toBe('now 1')
    await dialog.getByLabel(/^concurrency/).fill('4')
    await dialog.getByRole('button', { name: 'Change' }).click()
    await expect.poll(() => new Set(worker.all('holding').map(({ id }) => id)).size).toBe(4)
    await panelOf(page).getByText('concurrency=4').waitFor()
    await page.locator('tbody').getByText('/ 4').waitFor()

    await panelOf(page).getByRole('button', { name: 'Change settings…' }).click()
    expect(await dialog.getByLabel(/^concurrency/).inputValue()).toBe('4')
    await dialog.getByLabel(/^concurrency/).fill('')
    await dialog.getByRole('button', { name: 'Change' }).click()
    await page.locator('tbody').getByText('/ 1').waitFor()
    const { rows } = await db.query({ text: `select value from leasehold.settings where name = 'jobs'` })
    expect(rows).toEqual([{ value: {} }])
    worker.send('finish')
    await worker.kill()
  })

  it('what cannot work is said beside its field, and nothing is changed', async () => {
    const { worker } = await startJobs()
    const page = await open('/workers', { as: 'operate' })
    await panelOf(page).getByRole('button', { name: 'Change settings…' }).click()
    const dialog = page.getByRole('dialog')
    const [concurrency, leaseMs] = [dialog.getByLabel(/^concurrency/), dialog.getByLabel(/^leaseMs/)]
    await concurrency.fill('0')
    await leaseMs.fill('30')
    await dialog.getByRole('button', { name: 'Change' }).click()
    await dialog.getByText('is 0, but must be a whole number from 1').waitFor()
    await dialog.getByText('is 30, but must be a number of milliseconds from 250').waitFor()
    expect(await concurrency.getAttribute('aria-invalid')).toBe('true')
    await leaseMs.fill('many')
    await dialog.getByRole('button', { name: 'Change' }).click()
    await dialog.getByText('is not a number').waitFor()
    const { rows } = await db.query({ text: 'select value from leasehold.settings' })
    expect(rows).toEqual([])
    await worker.kill()
  })

  it('a key that may only read sees no buttons, and the API refuses it as well', async () => {
    const { worker } = await startJobs()
    const page = await open('/workers', { as: 'read' })
    await panelOf(page).getByText('Settings in force').waitFor()
    for (const name of ['Pause', 'Resume', 'Change settings…'])
      expect(await panelOf(page).getByRole('button', { name, exact: true }).count()).toBe(0)
    const status = await page.evaluate(async () => {
      const response = await fetch('/api/v1/settings/jobs', {
        method: 'PATCH',
        headers: { 'content-type': 'application/json' },
        body: '{"paused": true}',
      })
      return response.status
    })
    expect(status).toBe(403)
    await worker.kill()
  })
})
