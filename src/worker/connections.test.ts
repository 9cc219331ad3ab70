import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { openSession, useDatabase } from '../../test/support/database.ts'
import { collect, door, useWorkers } from '../../test/support/running-worker.ts'
import { insertJobs, WORK_DDL } from '../../test/support/work-table.ts'
import { type Database, openDatabase } from '../postgres/database.ts'
import { quoteIdentifier } from '../postgres/identifiers.ts'
import { Events } from './events.ts'

const database = useDatabase()
const run = useWorkers(database.url)
const db = openDatabase({ url: database.url })
beforeAll(async () => void (await db.query({ text: WORK_DDL })))
afterAll(async () => db.close())

/** How many connections each part of worker processes has, by the names that pg_stat_activity shows. */
async function connections(): Promise<Readonly<Record<string, number>>> {
  const { rows } = await db.query<{ part: string; count: number }>({
    // The name of the session that listens has the id of the process and no part before it.
    text: `select coalesce(substring(application_name from '^leasehold (worker|heartbeat) '), 'listener') as part, count(*)::int as count
from pg_stat_activity where datname = current_database() and application_name like 'leasehold %' group by 1`,
  })
  return Object.fromEntries(rows.map(({ part, count }) => [part, count]))
}

it('RULE-020-041: a busy worker process has at most the connections that docs/operations/connections.md lists', async () => {
  const events = new Events()
  const done = collect(events, 'settled', (all) => all.length >= 3)
  await insertJobs(db, 500)
  const most: Record<string, number> = {}
  await run(
    {
      handle: async () => {
        for (const [part, count] of Object.entries(await connections()))
          most[part] = Math.max(most[part] ?? 0, count)
      },
    },
    { events },
  )
  await done
  expect(most['worker']).toBeGreaterThan(0)
  expect(most['worker']).toBeLessThanOrEqual(6)
  expect(most['heartbeat'] ?? 0).toBeLessThanOrEqual(3)
  expect(most['listener']).toBe(1)
})

it('RULE-020-041: by default a worker process opens six connections for its statements, however many wait', async () => {
  let pool: Database | undefined
  const open = async ({ db: opened }: { readonly db: Database }): Promise<void> => {
    pool = opened
    return Promise.resolve()
  }
  await run({ handle: async () => Promise.resolve(), open, settings: { pollMs: 3_600_000 } })
  const [isFull, mayEnd] = [door(), door()]
  const backends: number[] = []
  // All of them wait for a connection at once. Who has one keeps it until six have.
  const transactions = Array.from({ length: 30 }, async () =>
    pool?.transaction(async (tx) => {
      const { rows } = await tx.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })
      backends.push(...rows.map(({ pid }) => pid))
      if (backends.length === 6) isFull.open()
      await mayEnd.opened
    }),
  )
  await isFull.opened
  mayEnd.open()
  await Promise.all(transactions)
  expect(backends).toHaveLength(30)
  expect(new Set(backends).size).toBe(6)
})

it('a server that has no connection left is an error that names the setting', async () => {
  const role = `${database.name.slice(0, 45)}_limited`
  await db.query({
    text: `create role ${quoteIdentifier(role)} login password 'only-for-this-test' connection limit 1`,
  })
  onTestFinished(async () => void (await db.query({ text: `drop role ${quoteIdentifier(role)}` })))
  const url = new URL(database.url)
  url.username = role
  url.password = 'only-for-this-test'
  await openSession(url.href)
  const refused = openDatabase({ url: url.href })
  onTestFinished(async () => refused.close())
  await expect(refused.query({ text: 'select 1' })).rejects.toMatchObject({
    code: 'DATABASE_UNAVAILABLE',
    message: expect.stringMatching(
      /no connection left .*maxConnections \(--max-connections, LEASEHOLD_MAX_CONNECTIONS\)/,
    ),
    cause: { code: '53300' },
  })
})
