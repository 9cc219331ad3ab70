import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { type Called, callLeasehold } from '../../../test/support/command-line.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { removeDirectory, temporaryDirectory } from '../../../test/support/directory.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/index.ts'

const { spawnNode } = useProcesses()
const database = useDatabase()
const db = openDatabase({ url: database.url })
let workingDirectory = ''
beforeAll(async () => {
  workingDirectory = await temporaryDirectory()
})
afterAll(async () => {
  await db.close()
  await removeDirectory(workingDirectory)
})

const ARGS = ['webhooks', 'recover', '--since', '1h', '--yes', '--reason', 'it is back']

async function recover(): Promise<Called> {
  return callLeasehold(ARGS, { databaseUrl: database.url, workingDirectory })
}

async function statuses(): Promise<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const { delivery_status: status } of await deliveryStates(db))
    counts[status] = (counts[status] ?? 0) + 1
  return counts
}

/** Holds the lock of one delivery, so that a requeue comes to a halt exactly there. */
async function holding(id: number): Promise<Client> {
  const client = new Client({ connectionString: database.url })
  await client.connect()
  onTestFinished(async () => client.end())
  await client.query('begin')
  await client.query('select from leasehold.webhook_outbox where id = $1 for update', [id])
  return client
}

async function sessions(condition: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select count(*)::int as count from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and ${condition}`,
  })
  return rows[0]?.count ?? 0
}

async function waitingForLock(): Promise<void> {
  const condition = `wait_event_type = 'Lock' and query like '%for update%'`
  await vi.waitFor(async () => expect(await sessions(condition)).toBe(1), { timeout: 30_000, interval: 20 })
}

async function noneActive(): Promise<void> {
  await vi.waitFor(async () => expect(await sessions(`state = 'active'`)).toBe(0), {
    timeout: 30_000,
    interval: 20,
  })
}

describe('ten thousand recovered, and ended half way', () => {
  beforeEach(async () => {
    await forgetWebhooks(db)
    await makeDeliveries(db, await makeEndpoint(db), 10_000, { status: 'failed' })
  })

  function start() {
    const started = spawnNode('dist/cli/main.js', ARGS, {
      cwd: workingDirectory,
      env: { DATABASE_URL: database.url, LEASEHOLD_PORT: '' },
    })
    onTestFinished(async () => void (await started.kill('SIGKILL')))
    return started
  }

  it('killed: what was committed stays, with its audit; run again, none is left out or requeued twice', async () => {
    const lock = await holding(5_500)
    const process = start()
    await waitingForLock()
    expect(await process.kill('SIGKILL')).toEqual({ code: null, signal: 'SIGKILL' })
    await lock.query('rollback')
    await noneActive()
    expect(await statuses()).toEqual({ pending: 5_000, failed: 5_000 })
    expect((await auditEntries(db)).at(-1)?.details).toMatchObject({ requeued: 5_000, matched: 10_000 })
    const again = await recover()
    expect(again.stdout).toMatch(/^Requeued 5,000 deliveries\./)
    expect(await statuses()).toEqual({ pending: 10_000 })
  })

  it('told to stop: it finishes its batch and says how to go on', async () => {
    const lock = await holding(3_500)
    const process = start()
    await waitingForLock()
    const exit = process.kill('SIGINT')
    // The batch that waits for the lock is the one that is finished.
    await lock.query('rollback')
    expect(await exit).toEqual({ code: 1, signal: null })
    expect(process.output().stdout).toMatch(
      /^Stopped\. 4,000 of 10,000 deliveries were changed, the rest is as it was\. The same command once more/,
    )
    expect((await recover()).stdout).toMatch(/^Requeued 6,000 deliveries\./)
    expect(await statuses()).toEqual({ pending: 10_000 })
  })

  it('the database ends its session: the error says what was done, and how to go on', async () => {
    const lock = await holding(1_500)
    const process = start()
    await waitingForLock()
    await db.query({
      text: `select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'`,
    })
    expect(await process.exited).toEqual({ code: 1, signal: null })
    await lock.query('rollback')
    const { stdout, stderr } = process.output()
    expect(stdout).toBe('')
    expect(stderr).toContain('1,000 of 10,000 deliveries were changed, the rest is as it was.')
    expect(stderr).toContain('DATABASE_UNAVAILABLE')
    expect(await statuses()).toEqual({ pending: 1_000, failed: 9_000 })
  })
})
