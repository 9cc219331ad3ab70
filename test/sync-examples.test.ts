import { Events, openDatabase } from 'leasehold'
import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, expect, it, onTestFinished, vi } from 'vitest'
import { loadSettings } from '../src/config/load.ts'
import { askFor, type Billing, billingSync, cancelAndReplay, howFar, startSync } from '../examples/sync.ts'
import { useDatabase } from './support/database.ts'
import { marked, projectFile, snippets } from './support/project-files.ts'
import { emptySync, syncJobs, watchJobs } from './support/sync-rows.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const MONTHS = ['2026-01', '2026-02', '2026-03']

beforeAll(async () => {
  await db.query({ text: 'create schema shop' })
  await db.query({
    text: 'create table shop.invoices (id text primary key, account text, month text, total int not null)',
  })
})
beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

/** Two invoices a month; February is answered at the second time. */
function someBilling(): Billing {
  let failures = 1
  return {
    async *monthsOf() {
      yield* MONTHS
    },
    async invoicesOf(account, month) {
      if (month === '2026-02' && failures > 0) {
        failures -= 1
        throw new Error('try later')
      }
      return Promise.resolve([1, 2].map((n) => ({ id: `${account} ${month} ${n}`, total: n * 100 })))
    },
  }
}

it('the code in the sync guide is identical to that of the examples', async () => {
  const regions = await marked('examples/sync.ts')
  expect(regions).toHaveLength(4)
  expect(await snippets('docs/guides/sync.md', 'ts')).toEqual(regions)
  expect(await snippets('docs/guides/sync.md', 'js')).toEqual([
    (await projectFile('examples/sync/leasehold.config.mjs')).trim(),
  ])
  expect(await snippets('docs/guides/sync.md', 'sql')).toEqual([
    (await projectFile('examples/enqueue-sync.sql')).trim(),
    (await projectFile('examples/sync-states.sql')).trim(),
  ])
})

it('in the sync example a job requested in a transaction completes, with every invoice imported once', async () => {
  const billing = someBilling()
  const { invoices } = billingSync(db, billing)
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    await client.query('begin')
    await askFor(client, invoices, 'acme')
    await client.query('rollback')
    expect(await syncJobs(db)).toEqual([])
    const { jobId, created } = await askFor(client, invoices, 'acme')
    expect(created).toBe(true)
    expect(await askFor(client, invoices, 'acme')).toEqual({ jobId, created: false })

    const events = new Events()
    const jobs = watchJobs(events)
    const runtime = await startSync(url, db, billing, events)
    expect(await jobs.ended(jobId)).toBe('done')
    expect(await runtime.stop()).toEqual({ clean: true })
    expect(await howFar(db, jobId)).toMatchObject({
      phase: 'completed',
      chunks: { total: 3, done: 3, skipped: 0 },
      rows: 6,
      failures: [],
    })
    const { rows } = await client.query(
      'select month, sum(total)::int as total from shop.invoices group by month order by month',
    )
    expect(rows).toEqual(MONTHS.map((month) => ({ month, total: 300 })))
  } finally {
    await client.end()
  }
})

it('the operator example cancels a job and resumes it', async () => {
  const { invoices } = billingSync(db, someBilling())
  const { jobId } = await invoices.enqueue(db, { matrixId: 'acme' })
  expect(await cancelAndReplay(db, jobId, 'ada')).toEqual({
    cancelled: { droppedChunks: 0, inFlight: 0 },
    replayed: { conflicting: 0, failedChunks: 0, droppedChunks: 0, unplanned: 1 },
  })
  expect(await howFar(db, jobId)).toMatchObject({ phase: 'waiting' })
})

it('the SQL in the guide requests a job once and shows its progress', async () => {
  const enqueue = { text: await projectFile('examples/enqueue-sync.sql') }
  expect((await db.query(enqueue)).rows).toHaveLength(1)
  expect((await db.query(enqueue)).rows).toEqual([])
  expect(await syncJobs(db)).toMatchObject([{ definition: 'invoices', matrix_id: 'acme' }])
  expect((await db.query({ text: await projectFile('examples/sync-states.sql') })).rows).toMatchObject([
    { matrix_id: 'acme', planned: false, chunks: '0' },
  ])
})

it('the configuration in the guide declares the two workers of a runner without opening a connection', async () => {
  vi.stubEnv('DATABASE_URL', 'postgresql://app@127.0.0.1:9/app')
  onTestFinished(() => void vi.unstubAllEnvs())
  const workingDirectory = new URL('../examples/sync', import.meta.url).pathname
  const { settings } = await loadSettings({ flags: {}, environment: {}, workingDirectory, terminal: false })
  expect(settings.workers.map(({ name, role = name }) => [name, role])).toEqual([
    ['sync-jobs', 'sync'],
    ['sync', 'sync'],
  ])
})
