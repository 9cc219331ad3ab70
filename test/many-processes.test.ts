/** Sixteen worker processes on one server: what a wake-up costs, how the work is shared, and how many connections they open. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it, vi } from 'vitest'
import { enqueue } from '../src/outbox/index.ts'
import { type Database, migrate, openDatabase } from '../src/postgres/index.ts'
import { createApplicationTables } from './support/all-applications.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { startServer, type TestServer } from './support/server.ts'
import { SECRET_KEY } from './support/webhook-endpoints.ts'

const PROCESSES = 16
/** What docs/operations/connections.md promises: of the workers, the heartbeat and the listener; and of the checks and metrics. */
const [OF_WORKERS, OF_CHECKS] = [10, 2]
// What is waited for takes seconds, and the view that is asked is costly to read.
const POLL = { timeout: 120_000, interval: 250 }
const PATIENCE = 300_000

const { spawnNode } = useProcesses()
let server: TestServer
let db: Database
let directory = ''
let workers: { readonly process: TestProcess; readonly http: string }[] = []

/** All four applications. Nothing polls, so that every claim follows a wake-up or another claim. */
function config(): string {
  const dist = new URL('../dist/', import.meta.url).href
  return `import { leaseTable } from '${dist}index.js'
    import { relay } from '${dist}outbox/index.js'
    import { handlers } from '${dist}outbox/publishers/handlers.js'
    import { reconciler } from '${dist}reconcile/index.js'
    import { createSync } from '${dist}sync/index.js'
    import { dispatcher } from '${dist}webhooks/index.js'
    const settings = { pollMs: 3_600_000 }
    const sync = createSync()
    sync.define('numbers', { plan: () => [1], syncChunk: async () => ({ rows: 1 }) })
    const table = leaseTable({
      table: 'public.payments', claimable: "status = 'pending'", order: ['created_at', 'id'],
      attempts: { column: false, expiries: 'lease_expiries', error: false },
    })
    export default { workers: [
      relay({ publisher: handlers({}, { otherwise: 'done' }), retention: false, settings }),
      dispatcher({ secretKey: '${SECRET_KEY}', settings }),
      ...sync.runner({ jobs: settings, chunks: settings }),
      reconciler({ table, transitions: { pending: ['paid'], paid: [] }, observe: async () => 'paid', settings }),
    ] }`
}

async function shown(process: TestProcess, name: string): Promise<string> {
  return (await process.line((text) => text.startsWith(`  ${name}`))).trim().split(/\s+/).at(-1) ?? ''
}

beforeAll(async () => {
  server = await startServer({
    settings: { shared_preload_libraries: 'pg_stat_statements', max_connections: '300' },
  })
  db = openDatabase({ url: server.url, maxConnections: 4, applicationName: 'the test' })
  await migrate(db)
  await createApplicationTables(db)
  await db.query({ text: 'create extension pg_stat_statements' })
  directory = await temporaryDirectory()
  await writeFile(join(directory, 'leasehold.config.mjs'), config())
  const env = { DATABASE_URL: server.url, LEASEHOLD_PORT: '', LEASEHOLD_LOG_LEVEL: 'warn' }
  const started = Array.from({ length: PROCESSES }, () =>
    spawnNode('dist/cli/main.js', ['work'], { cwd: directory, env }),
  )
  workers = await Promise.all(
    started.map(async (process) => ({ process, http: await shown(process, 'HTTP') })),
  )
  // Everybody has said twice that it is present, and so knows of all others.
  await presences(3 * PROCESSES)
}, PATIENCE)
afterAll(async () => {
  await Promise.all(workers.map(async ({ process }) => process.kill('SIGKILL')))
  await db?.close()
  await server?.remove()
  await removeDirectory(directory)
}, PATIENCE)

/** How many statements with this in their text were sent since the last reset. */
async function sent(pattern: string): Promise<number> {
  const { rows } = await db.query<{ calls: number }>({
    text: `select coalesce(sum(calls), 0)::float8 as calls from pg_stat_statements
      where query !~ 'pg_stat_statements' and query ~ $1`,
    values: [pattern],
  })
  return rows[0]?.calls ?? 0
}

/** The server does not store the comment with which a statement begins. */
const CLAIMS = 'expiries < .*update leasehold.outbox as t.*nullif'
const PRESENCES = 'insert into leasehold.workers as w'

/** Resolves after so many further presences of all processes. Each reports itself every 5 s: that is the clock here. */
async function presences(count: number): Promise<void> {
  const until = (await sent(PRESENCES)) + count
  await vi.waitFor(async () => expect(await sent(PRESENCES)).toBeGreaterThanOrEqual(until), POLL)
}

async function published(count: number): Promise<void> {
  await vi.waitFor(async () => {
    const text = `select count(*)::int as count from leasehold.outbox where status = 'PUBLISHED'`
    expect((await db.query({ text })).rows).toEqual([{ count }])
  }, POLL)
}

async function reset(): Promise<void> {
  await db.query({ text: 'select pg_stat_statements_reset()' })
  await db.query({ text: 'truncate leasehold.outbox' })
}

/** The value of a metric of the outbox, of each process. */
async function metric(name: string): Promise<number[]> {
  return Promise.all(
    workers.map(async ({ http }) => {
      const text = await (await fetch(`${http}/metrics`)).text()
      const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`))
      const values = lines.filter((line) => line.includes('"leasehold.outbox"'))
      return values.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0)
    }),
  )
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, one) => total + one, 0)

function print(what: string): void {
  process.stderr.write(`${PROCESSES} processes: ${what}\n`)
}

it(
  'a wake-up that all processes receive makes each of them claim at most once or twice, and three of them follow up',
  async () => {
    const events = 6
    await reset()
    const found = sum(await metric('leasehold_claims_total'))
    for (let n = 1; n <= events; n += 1) {
      await enqueue(db, { type: 'a', payload: n })
      await published(n)
      // The claims that follow are over.
      await presences(5)
    }
    const claims = await sent(CLAIMS)
    const successful = sum(await metric('leasehold_claims_total')) - found
    print(`${(claims / events).toFixed(1)} claims for one event, ${successful} of ${claims} found rows`)
    expect(successful).toBe(events)
    expect(claims).toBeGreaterThanOrEqual(events)
    // Each way of finding rows is a statement: by key, and in order. All processes at 0, 25 and 100 ms would be 96.
    expect(claims / events).toBeLessThan(4 * PROCESSES)
  },
  PATIENCE,
)

it(
  'under a steady trickle of events the claims of all processes together do not grow with their number',
  async () => {
    const events = 400
    await reset()
    const found = sum(await metric('leasehold_claims_total'))
    const startedAt = performance.now()
    for (let n = 0; n < events; n += 1) await enqueue(db, { type: 'a', payload: n })
    await published(events)
    const seconds = (performance.now() - startedAt) / 1_000
    const claims = await sent(CLAIMS)
    const successful = sum(await metric('leasehold_claims_total')) - found
    print(
      `${events} events one by one in ${seconds.toFixed(1)} s: ${claims} claims (${(claims / seconds).toFixed(0)} a second), ${((1 - successful / claims) * 100).toFixed(0)} % of them empty`,
    )
    expect(successful).toBeGreaterThan(0)
    // If each process claimed after each event, by two statements, there would be twice as many for one event as processes.
    expect(claims / events).toBeLessThan(PROCESSES)
  },
  PATIENCE,
)

it(
  'RULE-020-041: sixteen busy processes open no more connections than docs/operations/connections.md lists, and all of them work',
  async () => {
    const round = 4_000
    await reset()
    const before = await metric('leasehold_settled_rows_total')
    const most = new Map<string, number>()
    let [events, total] = [0, 0]
    let shares = before.map(() => 0)
    // A process that the machine does not run while the others claim finds nothing. So there is work until each had some.
    for (let rounds = 0; rounds < 15 && shares.includes(0); rounds += 1) {
      await db.query({
        text: `insert into leasehold.outbox (event_type, payload, ordering_key)
          select 'a', to_jsonb(n), case when n % 2 = 0 then 'key ' || n % 1000 end from generate_series(1, $1::int) as n`,
        values: [round],
      })
      events += round
      await vi.waitFor(async () => {
        const { rows } = await db.query<{ name: string; count: number }>({
          // The names are cut after 63 characters, and those of the heartbeat leave 43 for the id.
          text: `select left(regexp_replace(application_name, '^leasehold (worker |heartbeat )?', ''), 43) as name, count(*)::int as count
            from pg_stat_activity where backend_type = 'client backend' and application_name like 'leasehold%' group by 1`,
        })
        for (const { name, count } of rows) most.set(name, Math.max(most.get(name) ?? 0, count))
        total = Math.max(total, sum(rows.map(({ count }) => count)))
        const text = `select count(*)::int as count from leasehold.outbox where status = 'PUBLISHED'`
        expect((await db.query({ text })).rows).toEqual([{ count: events }])
      }, POLL)
      const after = await metric('leasehold_settled_rows_total')
      shares = after.map((count, i) => count - (before[i] ?? 0))
    }
    // The pool for checks and metrics has no name of its own.
    const { leasehold: ofChecks = 0, ...named } = Object.fromEntries(most)
    print(`shares of ${events} events: ${shares.toSorted((a, b) => a - b).join(', ')}`)
    print(
      `at most ${total} connections in all, ${Math.max(...Object.values(named))} of the workers of one process, ${ofChecks} of all checks`,
    )
    expect(shares).not.toContain(0)
    expect(sum(shares)).toBe(events)
    expect(Object.keys(named)).toHaveLength(PROCESSES)
    expect(Math.max(...Object.values(named))).toBeLessThanOrEqual(OF_WORKERS)
    expect(ofChecks).toBeLessThanOrEqual(OF_CHECKS * PROCESSES)
  },
  PATIENCE,
)

it(
  'all of them stop cleanly when they are told to at the same moment',
  async () => {
    const ends = await Promise.all(workers.map(async ({ process }) => process.kill('SIGTERM')))
    expect(ends).toEqual(workers.map(() => ({ code: 0, signal: null })))
  },
  PATIENCE,
)
