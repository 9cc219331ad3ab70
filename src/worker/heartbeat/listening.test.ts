import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { startProxy, type Proxy } from '../../../test/support/proxy.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { jobStates, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { leaseTable } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events, startRuntime, type Runtime } from '../index.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
const table = leaseTable(WORK_TABLE)
let proxy: Proxy
let runtime: Runtime | undefined

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  proxy = await startProxy(url)
})
afterEach(async () => {
  await runtime?.stop()
  await proxy.close()
})
afterAll(async () => db.close())

/** Inserts a row, tells the workers, and waits until it is settled. */
async function roundOf(events: Events): Promise<void> {
  const settled = events.next('settled')
  await db.transaction(async (tx) => {
    await tx.query({ text: 'insert into public.jobs default values' })
    await tx.query({ text: `select leasehold.wake('jobs')` })
  })
  await settled
}

it('a worker polls while its listening connection is silently cut, and reopens the connection', async () => {
  const events = new Events()
  const listening = events.next('listening')
  const started = await startRuntime({
    databaseUrl: url,
    listenUrl: proxy.url,
    presenceMs: 300,
    events,
    workers: [{ name: 'jobs', table, wake: true, settings: { pollMs: 100 }, handle: async () => undefined }],
  })
  runtime = started
  await listening

  const notListening = events.next('notListening')
  proxy.swallow(true)
  // Nobody has noticed yet, and nobody is told of this row.
  await roundOf(events)
  await notListening
  await roundOf(events)
  expect(started.listening).toBe(false)

  const again = events.next('listening')
  proxy.swallow(false)
  await again
  started.change('jobs', { pollMs: 3_600_000 })
  // A claim that was due already, and the two after the return, may find a row each; the others need a wake-up.
  for (let round = 0; round < 8; round += 1) await roundOf(events)
  expect(await jobStates(db)).toEqual({ DONE: 10 })
})
