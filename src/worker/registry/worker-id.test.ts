import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { door, useWorkers } from '../../../test/support/running-worker.ts'
import { insertJobs, jobs, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { startWorker } from '../../../test/support/worker-process.ts'
import { leaseTable } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../events.ts'
import { startRuntime } from '../process.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const processes = useProcesses()
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, leasehold.workers' })
})
afterAll(async () => db.close())

const options = {
  databaseUrl: url,
  log: false,
  heartbeat: 'inline',
  presenceMs: 50,
  id: 'fixed',
  workers: [{ name: 'jobs', table: leaseTable(WORK_TABLE), handle: async () => Promise.resolve() }],
} as const

describe.each([
  ['a process whose session is visible', { listen: true }],
  ['a process whose session a pooler hides', { listen: false }],
])('%s', (_, { listen }) => {
  it('RULE-020-032: keeps its rows when another process is started with its worker id, which refuses to start and says where the first one runs', async () => {
    const [id] = await insertJobs(db, 1)
    const started = door()
    const finish = door()
    const { events } = await run(
      {
        handle: async () => {
          started.open()
          await finish.opened
        },
      },
      { id: 'fixed', presenceMs: 50, listen },
    )
    await started.opened
    await expect(startRuntime({ ...options, listen })).rejects.toMatchObject({
      code: 'WORKER_ID_TAKEN',
      message: expect.stringMatching(
        new RegExp(`"fixed".*process ${process.pid} on .*\\bGive every process an id of its own`),
      ),
    })
    expect(await jobs(db)).toMatchObject([
      { id, status: 'CLAIMED', attempts: 0, expiries: 0, claimed_by: 'fixed' },
    ])
    const settled = events.next('settled')
    finish.open()
    await settled
    expect(await jobs(db)).toMatchObject([{ id, status: 'DONE', attempts: 0 }])
  })
})

it('RULE-020-032: of two processes that are started at once with the same worker id, one starts', async () => {
  const started = await Promise.allSettled([startRuntime(options), startRuntime(options)])
  const running = started.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
  onTestFinished(async () => void (await Promise.all(running.map(async (each) => each.stop()))))
  expect(running).toHaveLength(1)
  expect(started.flatMap((each) => (each.status === 'rejected' ? [each.reason] : []))).toMatchObject([
    { code: 'WORKER_ID_TAKEN' },
  ])
})

it('RULE-020-032, LIFE-14: a process that was killed and is started at once with the same worker id starts, and gets its rows back', async () => {
  const [id] = await insertJobs(db, 1, 'hold')
  const config = { databaseUrl: url, settings: { leaseMs: 3_600_000 }, runtime: { id: 'fixed' } }
  const first = startWorker(processes, config)
  await first.heard('holding')
  await first.kill('SIGKILL')
  const second = startWorker(processes, config)
  expect(await second.heard('holding')).toMatchObject({ id })
  expect(await jobs(db)).toMatchObject([{ id, attempts: 1, claimed_by: 'fixed' }])
  second.send('finish')
  expect(await second.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('a process starts with the worker id of one whose session was hidden, once that was not heard of for 30 s, and says that it waits', async () => {
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, last_seen_at)
      values ('fixed', 'elsewhere', 7, '0', '{jobs}', now() - interval '29 seconds')`,
  })
  const events = new Events()
  const waits = events.next('waitingForWorkerId')
  const runtime = await startRuntime({ ...options, events })
  onTestFinished(async () => void (await runtime.stop()))
  expect(await waits).toMatchObject({ worker: 'fixed', host: 'elsewhere', pid: 7 })
})

it('a process starts with the worker id of one that was last heard of when the clock of the database was ahead', async () => {
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, last_seen_at)
      values ('fixed', 'elsewhere', 7, '0', '{jobs}', now() + interval '1 hour')`,
  })
  const runtime = await startRuntime(options)
  expect(await runtime.stop()).toEqual({ clean: true })
})

it('a start that fails frees its worker id', async () => {
  const table = leaseTable({ ...WORK_TABLE, table: 'public.no_such_table' })
  const workers = [{ ...options.workers[0], table }]
  for (let n = 0; n < 2; n += 1) {
    const events = new Events()
    const waited: string[] = []
    events.on('waitingForWorkerId', ({ host }) => waited.push(host))
    await expect(startRuntime({ ...options, events, workers })).rejects.toMatchObject({
      code: 'LEASE_TABLE_MISMATCH',
    })
    expect(waited).toEqual([])
  }
})
