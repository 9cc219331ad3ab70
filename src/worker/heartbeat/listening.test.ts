import { Client } from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { Impostor, IMPOSTORS } from '../../../test/support/impostor.ts'
import { startProxy, type Proxy } from '../../../test/support/proxy.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { door } from '../../../test/support/running-worker.ts'
import { startServer } from '../../../test/support/server.ts'
import { insertJobs, jobStates, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { leaseTable } from '../../lease/index.ts'
import { hasCode } from '../../errors.ts'
import { SCRAM_ONLY_PREFIX } from '../../postgres/client.ts'
import { heartbeatScript } from '../../package-files.ts'
import { openDatabase } from '../../postgres/database.ts'
import { migrate } from '../../postgres/migrate.ts'
import { Events, startRuntime, type Runtime } from '../index.ts'
import { findDeadWorkers } from '../reaper/dead-workers.ts'
import { describeWorker, listWorkers } from '../registry/registry.ts'
import type { FromHeartbeat } from './messages.ts'
import { startHeartbeat } from './start-heartbeat.ts'

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

it('RULE-020-052: a process whose listening session alone is lost is not taken for dead, and its session is visible again later', async () => {
  const events = new Events()
  const listening = events.next('listening')
  runtime = await startRuntime({
    databaseUrl: url,
    listenUrl: proxy.url,
    presenceMs: 100,
    reaper: false,
    log: false,
    events,
    workers: [{ name: 'jobs', table, handle: async () => undefined }],
  })
  const { id } = runtime
  await listening
  // The process of another test may have been killed by a busy machine before it could say that it stops.
  const ours = (each: { readonly id: string }): boolean => each.id === id
  const died: unknown[] = []
  /** Another process checks for dead ones all the time. */
  async function until(sessionVisible: boolean): Promise<void> {
    for (;;) {
      const request = { self: 'another', graceMs: 60_000, declare: true, spared: [], evicted: [] }
      died.push(...(await findDeadWorkers(db, 'leasehold', request)).died.filter(ours))
      const worker = (await listWorkers(db, 'leasehold')).find(ours)
      if (worker?.sessionVisible === sessionVisible) return
    }
  }
  await until(true)
  await proxy.refuse()
  proxy.cut()
  await until(false)
  const request = { self: 'another', graceMs: 0, declare: true, spared: [], evicted: [] }
  const { died: later, missing } = await findDeadWorkers(db, 'leasehold', request)
  expect([died, later.filter(ours), missing.includes(id)]).toEqual([[], [], false])
  await roundOf(events)
  await proxy.accept()
  await until(true)
  expect(died).toEqual([])
})

it('RULE-020-052: while the server has no free connection, a process that lost its listening session renews its leases and is not taken for dead', async () => {
  const server = await startServer({ settings: { max_connections: '20' } })
  onTestFinished(async () => server.remove())
  const admin = openDatabase({ url: server.url, maxConnections: 2 })
  onTestFinished(async () => admin.close())
  await migrate(admin)
  await admin.query({ text: WORK_DDL })
  // Not a superuser, for whom the server reserves connections: those are for this test.
  await admin.query({ text: `create role app login password 'app' in role leasehold_worker` })
  await admin.query({ text: 'grant all on public.jobs to app' })
  const appUrl = Object.assign(new URL(server.url), { username: 'app', password: 'app' }).href
  const others: Client[] = []
  onTestFinished(async () => void (await Promise.all(others.map(async (client) => client.end()))))

  const events = new Events()
  const listening = events.next('listening')
  const renewed = events.next('renewed')
  const finish = door()
  const lost: unknown[] = []
  events.on('lost', (event) => lost.push(event))
  runtime = await startRuntime({
    databaseUrl: appUrl,
    presenceMs: 100,
    reaper: false,
    log: false,
    events,
    workers: [{ name: 'jobs', table, settings: { heartbeatMs: 100 }, handle: async () => finish.opened }],
  })
  await insertJobs(admin, 1)
  await Promise.all([listening, renewed])

  async function takeAllConnections(): Promise<void> {
    for (;;) {
      const client = new Client({ connectionString: appUrl })
      try {
        await client.connect()
      } catch (error) {
        if (hasCode(error, '53300')) return
        throw error
      }
      others.push(client)
    }
  }

  /** Ends the listening session. True: another one was refused; false: it was faster than those who take them all. */
  async function endListening(): Promise<boolean> {
    const refused = events.next('notListening', ({ error }) => /connection slots|clients/.test(String(error)))
    const again = events.next('listening')
    // By its name: the registry does not know yet of a session that has just begun to listen.
    await admin.query({
      text: 'select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1',
      values: [`leasehold ${runtime?.id}`],
    })
    await takeAllConnections()
    return Promise.race([refused.then(() => true), again.then(() => false)])
  }

  await takeAllConnections()
  while (!(await endListening()));
  const check = { self: 'another', graceMs: 60_000, declare: true, spared: [], evicted: [] }
  for (;;) {
    // The process has a grace period to report itself by another session.
    expect((await findDeadWorkers(admin, 'leasehold', check)).died).toEqual([])
    const [worker] = await listWorkers(admin, 'leasehold')
    if (worker?.sessionVisible === false) break
  }
  for (let round = 0; round < 5; round += 1) {
    await events.next('renewed', ({ count }) => count === 1)
    const { died, missing } = await findDeadWorkers(admin, 'leasehold', { ...check, graceMs: 0 })
    expect([died, missing]).toEqual([[], []])
  }
  expect(runtime.listening).toBe(false)

  const again = events.next('listening')
  await Promise.all(others.splice(0).map(async (client) => client.end()))
  await again
  const settled = events.next('settled')
  finish.open()
  await settled
  expect([lost, await jobStates(admin)]).toEqual([[], { DONE: 1 }])
  await runtime.stop()
})

it.each([
  { connection: 'session that listens', listen: true, answer: 'asks for the password in clear text' },
  { connection: 'session that listens', listen: true, answer: 'ends SCRAM without a proof' },
  { connection: 'pool', listen: false, answer: 'asks for the password in clear text' },
  { connection: 'pool', listen: false, answer: 'ends SCRAM without a proof' },
] as const)(
  'an impostor at the address of an embedded server that $answer gets nothing from the $connection of the heartbeat thread',
  async ({ listen, answer }) => {
    const password = `${SCRAM_ONLY_PREFIX}only-for-this-test`
    const impostor = new Impostor(IMPOSTORS[answer])
    const databaseUrl = `postgresql://postgres:${password}@127.0.0.1:${await impostor.listen(0)}/x`
    const refused: FromHeartbeat[] = []
    const heartbeat = startHeartbeat({
      config: {
        databaseUrl,
        listenUrl: databaseUrl,
        schema: 'leasehold',
        worker: describeWorker([], {}),
        isRegistered: false,
        listen,
        presenceMs: 50,
      },
      thread: await heartbeatScript(),
      onMessage: (message) => {
        if (message.type === (listen ? 'notListening' : 'trouble')) refused.push(message)
      },
    })
    await expect.poll(() => refused.length).toBeGreaterThan(1)
    await heartbeat.stop({ clean: true, withinMs: 0 })
    await impostor.close()
    expect(impostor.hasReceived(password)).toBe(false)
    expect(impostor.text).not.toContain('leasehold.workers')
    expect(refused[0]).toMatchObject({
      error: { message: expect.stringMatching(/The password was not sent|SASL/) },
    })
  },
)
