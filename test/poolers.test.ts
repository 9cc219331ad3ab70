/** The four applications through PgBouncer, in transaction mode and in session mode. */
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { enqueue } from '../src/outbox/index.ts'
import { handlers } from '../src/outbox/publishers/handlers.ts'
import { relay } from '../src/outbox/relay.ts'
import { type DatabaseEvent, openDatabase, quoteIdentifier } from '../src/postgres/index.ts'
import { Events, listWorkers, startRuntime } from '../src/worker/index.ts'
import {
  type Application,
  APPLICATIONS,
  createApplicationTables,
  effects,
  emptyApplicationTables,
  finished,
  leasedBy,
  produce,
  startApplications,
} from './support/all-applications.ts'
import { useDatabase } from './support/database.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { type PoolMode, usePooler } from './support/pgbouncer.ts'
import { useProcesses } from './support/processes.ts'
import { hold, useReceivers } from './support/receiver.ts'
import { addEndpoint } from './support/webhook-endpoints.ts'
import type { Line, WorkerProcess } from './support/worker-process.ts'

const { url, name: database } = useDatabase()
const poolers = { transaction: usePooler(url, 'transaction'), session: usePooler(url, 'session') }
const processes = useProcesses()
const receiver = useReceivers()
const db = openDatabase({ url })
const POLL = { timeout: 200_000, interval: 50 }
const PATIENCE = 280_000
const ROWS = 12
const TABLES: Readonly<Record<Application, string>> = {
  outbox: 'leasehold.outbox',
  webhooks: 'leasehold.webhook_outbox',
  sync: 'leasehold.sync_checkpoints',
  reconcile: 'public.payments',
}

beforeAll(async () => createApplicationTables(db))
afterAll(async () => db.close())

interface Case {
  readonly mode: PoolMode
  /** Whether a listenUrl leads past the pooler. */
  readonly past: boolean
}

interface Told {
  readonly held: Record<Application, number>
  readonly done: Record<Application, readonly number[]>
  readonly victim: string
  readonly survivor: WorkerProcess
}

/** The numbers of the events that a receiver was sent, in their order. */
function numbersIn(received: readonly { readonly body: string }[]): number[] {
  const numbers = received.map(({ body }) => (JSON.parse(body) as { readonly data: { n: number } }).data.n)
  return numbers.toSorted((a, b) => a - b)
}

/** A process is killed while it holds rows of every application; another one does all the work. */
async function killOne({ mode, past }: Case): Promise<Told> {
  await emptyApplicationTables(db)
  const through = poolers[mode].urlOf(url)
  const before = await poolers[mode].served(database)
  // Where its session is visible, its rows are to come back long before their leases end.
  const leaseMs = past ? 600_000 : 4_000
  const config = {
    databaseUrl: through,
    settings: { leaseMs, heartbeatMs: 400, reaperIntervalMs: 300, shutdownTimeoutMs: 3_000, pollMs: 200 },
    runtime: past ? { listenUrl: url } : {},
  }
  const shop = await receiver()
  const held = hold(shop)
  await addEndpoint(db, shop.url)
  const producer = openDatabase({ url: through })
  await produce(producer, ROWS)
  await producer.close()

  const victim = startApplications(processes, { ...config, hold: true })
  onTestFinished(async () => void (await victim.kill('SIGKILL')))
  const victimId = String((await victim.heard('up'))['id'])
  for (const application of ['outbox', 'sync', 'reconcile'])
    await victim.heard('holding', (line) => line['application'] === application)
  // What it has in flight is waiting for the receiver.
  await vi.waitFor(async () => {
    const { webhooks } = await leasedBy(db, victimId)
    expect(shop.received).toHaveLength(Math.max(1, webhooks))
  }, POLL)
  await victim.kill('SIGKILL')
  const leased = await leasedBy(db, victimId)
  held.letGo()
  const cut = shop.received.length

  const tell = ['trouble', 'listening', 'notListening', 'reaped', 'workerDied', 'fencedOff', 'lost']
  const survivor = startApplications(processes, { ...config, tell })
  onTestFinished(async () => void (await survivor.kill('SIGKILL')))
  const all = Object.fromEntries(APPLICATIONS.map((application) => [application, ROWS]))
  await vi.waitFor(async () => expect(await finished(db)).toEqual(all), POLL)
  await survivor.heard(mode === 'transaction' && !past ? 'notListening' : 'listening')
  expect(await survivor.kill('SIGTERM')).toEqual({ code: 0, signal: null })

  const after = await poolers[mode].served(database)
  expect(after.mode).toBe(mode)
  expect(after.transactions - before.transactions).toBeGreaterThan(4 * APPLICATIONS.length)
  return {
    held: leased,
    done: {
      outbox: await effects(db, 'outbox'),
      webhooks: numbersIn(shop.received.slice(cut)),
      sync: await effects(db, 'sync'),
      reconcile: await effects(db, 'reconcile'),
    },
    victim: victimId,
    survivor,
  }
}

describe.each<Case>([
  { mode: 'transaction', past: false },
  { mode: 'transaction', past: true },
  { mode: 'session', past: false },
])('in $mode mode, with a listenUrl past the pooler: $past', (each) => {
  let told: Promise<Told> | undefined
  /** One scenario, of which each test asserts a part. */
  async function scenario(): Promise<Told> {
    told ??= killOne(each)
    return told
  }
  const numbers = Array.from({ length: ROWS }, (_, i) => i + 1)

  it.each(APPLICATIONS)(
    '%s: every row is done once, and those of a killed process come back',
    async (application) => {
      const { held, done, survivor, victim } = await scenario()
      expect(held[application]).toBeGreaterThan(0)
      expect(done[application]).toEqual(numbers)
      const reaped = survivor.all('reaped').filter((line) => line['table'] === TABLES[application])
      const expected: Line[] = reaped.map((line) => ({ ...line, evicted: each.past }))
      expect(reaped).toEqual(expected)
      // Its death is noticed where its session is visible. Elsewhere its leases expire, and a table whose expired rows
      // can be claimed need not be reaped.
      expect(reaped.length).toBeLessThanOrEqual(held[application])
      expect(reaped.length).toBeGreaterThanOrEqual(each.past ? held[application] : 0)
      expect(survivor.all('workerDied').map((line) => line['died'])).toEqual(each.past ? [victim] : [])
    },
    PATIENCE,
  )

  it(
    'nothing is in trouble, and only a pooler in transaction mode is reported, once, as one that delivers no wake-ups',
    async () => {
      const { survivor } = await scenario()
      for (const type of ['trouble', 'fencedOff', 'lost']) expect(survivor.all(type)).toEqual([])
      const undelivered = each.mode === 'transaction' && !each.past
      const codes = survivor.all('notListening').map((line) => (line['error'] as { code: unknown }).code)
      expect(codes).toEqual(undelivered ? ['LISTEN_UNAVAILABLE'] : [])
      expect(survivor.all('listening').length > 0).toBe(!undelivered)
    },
    PATIENCE,
  )
})

describe('wake-ups', () => {
  it.each<Case>([
    { mode: 'transaction', past: true },
    { mode: 'session', past: false },
  ])('arrive in $mode mode, with a listenUrl past the pooler: $past', async ({ mode, past }) => {
    await emptyApplicationTables(db)
    const events = new Events()
    const listening = events.next('listening')
    const runtime = await startRuntime({
      databaseUrl: poolers[mode].urlOf(url),
      ...(past ? { listenUrl: url } : {}),
      events,
      log: false,
      workers: [relay({ publisher: handlers({}, { otherwise: 'done' }), settings: { pollMs: 3_600_000 } })],
    })
    onTestFinished(async () => void (await runtime.stop()))
    await listening
    // The claims after it began to listen may find the first ones; the others need a wake-up.
    for (let round = 0; round < 8; round += 1) {
      const settled = events.next('settled')
      await enqueue(db, { type: 'a', payload: round })
      await settled
    }
    expect((await finished(db)).outbox).toBe(8)
  })

  it('leasehold work warns that they do not arrive through a pooler in transaction mode, and names the setting', async () => {
    await emptyApplicationTables(db)
    const home = await temporaryDirectory()
    onTestFinished(async () => removeDirectory(home))
    const start = (more: Readonly<Record<string, string>>) => {
      const env = { DATABASE_URL: poolers.transaction.urlOf(url), LEASEHOLD_PORT: '', ...more }
      const started = processes.spawnNode('dist/cli/main.js', ['work', '--only', 'reaper', '--no-http'], {
        cwd: home,
        env: { LEASEHOLD_LOG_LEVEL: 'debug', LEASEHOLD_LOG_FORMAT: 'json', ...env },
      })
      onTestFinished(async () => void (await started.kill('SIGKILL')))
      return started
    }
    const polling = start({})
    await vi.waitFor(() => expect(polling.output().stderr).toContain('wake-ups do not arrive'), POLL)
    expect(polling.output().stderr).toContain('LEASEHOLD_LISTEN_URL')
    expect(await polling.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(polling.output().stderr.match(/wake-ups do not arrive/g)).toHaveLength(1)

    const listening = start({ LEASEHOLD_LISTEN_URL: url })
    await vi.waitFor(() => expect(listening.output().stderr).toContain('listening for wake-ups'), POLL)
    const alive = (await listWorkers(db, 'leasehold')).filter(({ state }) => state === 'alive')
    expect(alive).toMatchObject([{ sessionVisible: true }])
    expect(await listening.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(listening.output().stderr).not.toContain('wake-ups do not arrive')
  })
})

describe.each<PoolMode>(['transaction', 'session'])('in %s mode', (mode) => {
  it('named statements succeed on every connection, prepared or not', async () => {
    const seen: DatabaseEvent[] = []
    const pool = openDatabase({
      url: poolers[mode].urlOf(url),
      maxConnections: 12,
      onEvent: (event) => seen.push(event),
    })
    onTestFinished(async () => pool.close())
    for (let round = 0; round < 10; round += 1) {
      const asked = Array.from({ length: 24 }, (_, n) => n)
      const answers = await Promise.all(
        asked.map(async (n) =>
          pool.query<{ n: number }>({
            name: 'leasehold_doubled',
            text: 'select $1::int * 2 as n, pg_sleep(0.002)',
            values: [n],
          }),
        ),
      )
      expect(answers.map(({ rows }) => rows[0]?.n)).toEqual(asked.map((n) => n * 2))
    }
    // At most once: the first mismatch turns names off. A pooler that supports them needs no such thing.
    expect(seen.map(({ type }) => type)).toEqual(
      seen.length === 0 ? [] : mode === 'transaction' ? ['preparedStatementsOff'] : [],
    )
  })

  it('settings of the database and the role apply', async () => {
    await db.query({ text: `alter database ${quoteIdentifier(database)} set statement_timeout to '54321ms'` })
    onTestFinished(
      async () =>
        void (await db.query({
          text: `alter database ${quoteIdentifier(database)} reset statement_timeout`,
        })),
    )
    // Sessions that are open already have the setting from before.
    await poolers[mode].restart()
    const pool = openDatabase({ url: poolers[mode].urlOf(url) })
    onTestFinished(async () => pool.close())
    const shown = await pool.query<{ statement_timeout: string }>({ text: 'show statement_timeout' })
    expect(shown.rows).toEqual([{ statement_timeout: '54321ms' }])
  })

  it.each([
    ['statement_timeout', '5000'],
    ['options', '-c statement_timeout=5000'],
  ])(
    'a URL with %s, which the pooler refuses, is an error that says where to set it',
    async (name, value) => {
      const through = new URL(poolers[mode].urlOf(url))
      through.searchParams.set(name, value)
      const refused = openDatabase({ url: through.href })
      onTestFinished(async () => refused.close())
      await expect(refused.query({ text: 'select 1' })).rejects.toMatchObject({
        code: 'SETTING_INVALID',
        message: expect.stringMatching(
          new RegExp(`unsupported startup parameter.* ${name}.*ALTER ROLE.*ignore_startup_parameters`),
        ),
      })
    },
  )
})
