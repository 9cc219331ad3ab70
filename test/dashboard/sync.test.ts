/** Jobs: found, followed while they run, cancelled, and replayed chunk by chunk. */
import { beforeEach, describe, expect, it } from 'vitest'
import { createSync } from '../../src/sync/index.ts'
import { PermanentError } from '../../src/worker/index.ts'
import { filterBy, untilRows, useDashboard } from '../support/browser.ts'
import { useRuntimes } from '../support/runtimes.ts'
import { emptySync, gate, makeChunks, makeJob } from '../support/sync-rows.ts'

const { db, databaseUrl, open } = useDashboard()
const start = useRuntimes(databaseUrl)

beforeEach(async () => emptySync(db))

interface Source {
  readonly chunks: number
  /** The numbers of chunks that fail for good. */
  readonly broken?: Set<number>
  /** Chunks wait for it. */
  readonly until?: Promise<void>
}

/** A runner of the definition `numbers`. */
async function startRunner({ chunks, broken = new Set(), until }: Source) {
  const synced: number[] = []
  const sync = createSync()
  const numbers = sync.define<{ n: number }>('numbers', {
    async *plan() {
      for (let n = 1; n <= chunks; n += 1) yield await Promise.resolve({ n })
    },
    async syncChunk({ query: { n } }) {
      await until
      if (broken.has(n)) throw new PermanentError(`the source has lost <b>number ${n}</b>`)
      synced.push(n)
      return { rows: 10 }
    },
  })
  await start(sync.runner({ checkEveryMs: 20 }))
  return { numbers, synced }
}

describe('the list of jobs', () => {
  it('shows how a job is defined while there is none, and a new one without loading the page again', async () => {
    const page = await open('/sync')
    await page.getByText('No job was enqueued yet.').waitFor()
    await page.getByText("const invoices = sync.define('invoices', {").waitFor()
    const id = await makeJob(db, { matrix: 'acme' })
    await makeChunks(db, id, 3, { matrix: 'acme', state: 'done' })
    await makeChunks(db, id, 1, { matrix: 'acme', state: 'waiting', from: 4 })
    await page.locator(`tr[data-id="${id}"]`, { hasText: '3 of 4' }).waitFor()
  })

  it('keeps its filters in the address, and finds by state, definition, matrix and error', async () => {
    await makeJob(db, {
      definition: 'invoices',
      matrix: 'a',
      state: 'failed',
      error: 'Timeout of the source',
    })
    await makeJob(db, { definition: 'invoices', matrix: 'b', state: 'completed' })
    await makeJob(db, { definition: 'customers', matrix: 'c', state: 'failed', error: 'refused' })
    const page = await open('/sync')
    await untilRows(page, 3)
    await page.getByRole('button', { name: 'FAILED' }).click()
    await untilRows(page, 2)
    await filterBy(page, 'Error contains', 'timeout')
    await untilRows(page, 1)
    const { searchParams } = new URL(page.url())
    expect([searchParams.get('error'), searchParams.get('states')]).toEqual(['timeout', 'FAILED'])
    await page.reload()
    await untilRows(page, 1)
    await page.getByText('Timeout of the source').waitFor()
    await page.getByRole('button', { name: 'Clear filters' }).click()
    await filterBy(page, 'Matrix', 'c')
    await untilRows(page, 1)
    await filterBy(page, 'Definition', 'invoices')
    await page.getByText('No job matches these filters.').waitFor()
  })

  it('cancels everything that matches', async () => {
    for (const matrix of ['a', 'b', 'c']) await makeJob(db, { definition: 'numbers', matrix })
    await makeJob(db, { definition: 'other', matrix: 'a' })
    const page = await open('/sync?definition=numbers', { as: 'operate' })
    await page.getByRole('button', { name: 'Cancel…' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.locator('.matched', { hasText: '3' }).waitFor()
    await dialog.getByLabel('Reason, for the audit').fill('enqueued by mistake')
    await dialog.getByRole('button', { name: 'Cancel 3' }).click()
    await dialog.getByText('finished').waitFor()
    const { rows } = await db.query({
      text: 'select definition, count(*)::int as failed from leasehold.sync_jobs where failed_at is not null group by 1',
    })
    expect(rows).toEqual([{ definition: 'numbers', failed: 3 }])
  })
})

describe('a job', () => {
  it('retries only the chunks that have failed, and shows each chunk as a square that changes while it runs', async () => {
    const broken = new Set([2, 5])
    const { numbers, synced } = await startRunner({ chunks: 6, broken })
    const { jobId } = await numbers.enqueue(db, { matrixId: 'acme' })
    const page = await open(`/sync/jobs/${jobId}`, { as: 'operate' })
    await page.locator('.page-header .state', { hasText: 'failed' }).waitFor()
    await expect.poll(async () => page.locator('.squares .look-done').count()).toBe(4)
    expect(await page.locator('.squares .look-failed').count()).toBe(2)
    const failed = page.getByRole('region', { name: 'Failed chunks' })
    // As text, and not as HTML.
    await failed.getByText('the source has lost <b>number 2</b>').waitFor()
    await failed.getByRole('button', { name: 'Explain' }).first().click()
    const dialog = page.getByRole('dialog')
    await dialog.locator('[data-code="dead"]').waitFor()
    await page.keyboard.press('Escape')
    await page.locator('.squares .look-failed').first().click()
    await dialog.getByText('"n": 2').waitFor()
    expect(new URL(page.url()).searchParams.get('chunk')).not.toBeNull()
    await page.keyboard.press('Escape')

    broken.clear()
    synced.length = 0
    await page.getByRole('button', { name: 'Retry failed chunks' }).click()
    await dialog.getByLabel('Reason, for the audit').fill('the source has found them')
    await dialog.getByRole('button', { name: 'Retry failed chunks' }).click()
    await page.locator('.page-header .state', { hasText: 'completed' }).waitFor()
    await expect.poll(async () => page.locator('.squares .look-done').count()).toBe(6)
    expect(new Set(synced)).toEqual(new Set([2, 5]))
  })

  it('is cancelled from its page while its chunks are synced', async () => {
    const door = gate()
    const { numbers } = await startRunner({ chunks: 4, until: door.opened })
    const { jobId } = await numbers.enqueue(db, { matrixId: 'acme' })
    const page = await open(`/sync/jobs/${jobId}`, { as: 'operate' })
    await expect.poll(async () => page.locator('.squares .look-running').count()).toBeGreaterThan(0)
    await page.getByRole('button', { name: 'Cancel the job' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Reason, for the audit').fill('not needed any more')
    await dialog.getByRole('button', { name: 'Cancel the job' }).click()
    await page.locator('.page-header .state', { hasText: 'failed' }).waitFor()
    const { rows } = await db.query({
      text: `select principal, details ->> 'reason' as reason from leasehold.audit where action = 'sync.cancel'`,
    })
    expect(rows).toMatchObject([{ principal: 'operate', reason: 'not needed any more' }])
    door.open()
  })

  it('with thousands of chunks shows a thousand at a time, and those of one state on request', async () => {
    const id = await makeJob(db, { matrix: 'm' })
    await makeChunks(db, id, 2_500, { state: 'done' })
    await makeChunks(db, id, 2, { state: 'failed', error: 'lost', from: 2_501 })
    const page = await open(`/sync/jobs/${id}`)
    const squares = page.locator('.squares a')
    await expect.poll(async () => squares.count()).toBe(1_000)
    await page.getByText('1,000 of 2,502').waitFor()
    await page
      .getByRole('navigation', { name: 'Pages of chunks' })
      .getByRole('button', { name: 'Next' })
      .click()
    await page.getByText('From chunk 1,001').waitFor()
    expect(await squares.count()).toBe(1_000)
    await page.getByRole('group', { name: 'Only chunks' }).getByRole('button', { name: 'FAILED' }).click()
    await expect.poll(async () => squares.count()).toBe(2)
    // The arrow keys move from square to square.
    await squares.first().focus()
    await page.keyboard.press('ArrowRight')
    await page.keyboard.press('Enter')
    await page.getByRole('dialog').getByText('2,502').waitFor()
  })

  it('a key that may only read sees no buttons, and the API refuses it as well', async () => {
    const id = await makeJob(db, { matrix: 'm', state: 'failed', error: 'lost' })
    const page = await open(`/sync/jobs/${id}`, { as: 'read' })
    await page.locator('[data-code="dead"]').waitFor()
    for (const name of ['Replay', 'Retry failed chunks', 'Cancel the job'])
      expect(await page.getByRole('button', { name, exact: true }).count()).toBe(0)
    const statuses = await page.evaluate(async (job) => {
      const post = async (path: string, body: object): Promise<number> => {
        const headers = { 'content-type': 'application/json' }
        const sent = { method: 'POST', headers, body: JSON.stringify({ reason: 'because', ...body }) }
        return (await fetch(`/api/v1/sync/jobs/${path}`, sent)).status
      }
      return [
        await post(`${job}/replay`, {}),
        await post(`${job}/cancel`, {}),
        await post('changes', { action: 'replay', ids: [job] }),
      ]
    }, id)
    expect(statuses).toEqual([403, 403, 403])
    await page.goto(page.url().replace(/\/sync\/.*/, '/sync'))
    await untilRows(page, 1)
    expect(await page.locator('.bulk-bar').count()).toBe(0)
  })
})
