/** The applications in a database with settings that change how PostgreSQL prints and reads values. */
import { randomUUID } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { examine } from '../src/doctor/doctor.ts'
import { createOutbox, relay } from '../src/outbox/index.ts'
import type { OutboxEvent } from '../src/outbox/index.ts'
import { type Database, openDatabase, quoteIdentifier } from '../src/postgres/index.ts'
import { createApi } from '../src/server/api/api.ts'
import { toCursor } from '../src/operations/fields.ts'
import { createKey } from '../src/operations/api-keys.ts'
import { startRuntime } from '../src/worker/index.ts'
import { withAdmin } from './support/admin.ts'
import {
  APPLICATIONS,
  createApplicationTables,
  emptyApplicationTables,
  finished,
  produce,
  startApplications,
} from './support/all-applications.ts'
import { callLeasehold } from './support/command-line.ts'
import { useDatabase } from './support/database.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { useLoginRoles } from './support/login-roles.ts'
import { usePooler } from './support/pgbouncer.ts'
import { useProcesses } from './support/processes.ts'
import { useReceivers } from './support/receiver.ts'
import { addEndpoint, SECRET_KEY } from './support/webhook-endpoints.ts'

/** Each may be set for a role or a database, for reasons that have nothing to do with Leasehold. */
const SETTINGS: Readonly<Record<string, string>> = {
  array_nulls: 'off',
  backslash_quote: 'off',
  bytea_output: 'escape',
  client_encoding: 'LATIN1',
  datestyle: 'German, DMY',
  default_transaction_deferrable: 'on',
  enable_indexscan: 'off',
  extra_float_digits: '-15',
  intervalstyle: 'sql_standard',
  plan_cache_mode: 'force_generic_plan',
  quote_all_identifiers: 'on',
  row_security: 'off',
  search_path: 'pg_catalog',
  standard_conforming_strings: 'off',
  timezone: 'Asia/Kathmandu',
  transform_null_equals: 'on',
  xmlbinary: 'hex',
  xmloption: 'document',
}

const database = useDatabase()
const { url, name } = database
const logins = useLoginRoles(database)
const pooler = usePooler(url)
const processes = useProcesses()
const receiver = useReceivers()
const POLL = { timeout: 100_000, interval: 50 }
const ROWS = 12

let directory: string
let before: readonly string[]

beforeAll(async () => {
  directory = await temporaryDirectory()
  const db = openDatabase({ url })
  await createApplicationTables(db)
  before = await findingsOf(db)
  await db.close()
  await withAdmin(url, async (admin) => {
    for (const [setting, value] of Object.entries(SETTINGS))
      await admin.query(`alter database ${quoteIdentifier(name)} set ${setting} = '${value}'`)
  })
})

afterAll(async () => removeDirectory(directory))

async function findingsOf(db: Database): Promise<string[]> {
  return (await examine(db)).findings.map(({ check, text }) => `${check}: ${text}`)
}

const ROUTES = [
  { route: 'directly', urlOf: () => url, apiUrl: () => logins.api.url },
  // Its pool is that of a superuser, whose session becomes the roles as well.
  {
    route: 'through PgBouncer in transaction mode',
    urlOf: () => pooler.urlOf(url),
    apiUrl: () => pooler.urlOf(url),
  },
] as const

describe.each(ROUTES)('$route', ({ urlOf, apiUrl }) => {
  function open() {
    const db = openDatabase({ url: urlOf() })
    onTestFinished(async () => db.close())
    return db
  }

  /** An API on this route, and what it answers. */
  async function serve(db: Database) {
    const own = openDatabase({ url: apiUrl() })
    const errors: unknown[] = []
    const api = createApi({
      db: own,
      webhooks: { secretKey: SECRET_KEY },
      onError: (error) => void errors.push(error),
    })
    onTestFinished(async () => {
      await api.stop()
      await own.close()
      expect(errors).toEqual([])
    })
    return async (path: string, tenant?: string) => {
      const { key } = await createKey(db, { name: randomUUID(), role: 'read', tenant }, { principal: 'test' })
      const headers = { authorization: `Bearer ${key}` }
      const answer = await api.fetch(new Request(`http://localhost/api/v1${path}`, { headers }))
      return (await answer.json()) as { items: { availableAt: string }[] }
    }
  }

  it('all applications start and do all their work', { timeout: 120_000 }, async () => {
    const db = open()
    await emptyApplicationTables(db)
    const shop = await receiver()
    await addEndpoint(db, shop.url)
    await produce(db, ROWS)
    const worker = startApplications(processes, {
      databaseUrl: urlOf(),
      tell: ['trouble', 'fencedOff', 'lost', 'tableSlow'],
    })
    onTestFinished(async () => void (await worker.kill('SIGKILL')))
    await worker.heard('up')
    const all = Object.fromEntries(APPLICATIONS.map((application) => [application, ROWS]))
    await vi.waitFor(async () => expect(await finished(db)).toEqual(all), POLL)
    expect(await worker.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    for (const type of ['trouble', 'fencedOff', 'lost', 'tableSlow']) expect(worker.all(type)).toEqual([])
  })

  it('an event reaches its publisher with the time at which it was written', async () => {
    const db = open()
    await emptyApplicationTables(db)
    const published: OutboxEvent[] = []
    const runtime = await startRuntime({
      databaseUrl: urlOf(),
      log: false,
      listen: false,
      workers: [
        relay({
          publisher: { name: 'kept', publish: async (batch) => void published.push(...batch) },
          settings: { pollMs: 50 },
        }),
      ],
    })
    onTestFinished(async () => void (await runtime.stop()))
    await createOutbox().enqueue(db, { type: 'a', payload: { text: '\\ "quoted" \'once\' ü €' } })
    await vi.waitFor(() => expect(published).toHaveLength(1), POLL)
    const { rows } = await db.query<{ ms: string }>({
      text: 'select trunc(extract(epoch from created_at) * 1000)::text as ms from leasehold.outbox',
    })
    expect(published[0]).toMatchObject({
      payload: { text: '\\ "quoted" \'once\' ü €' },
      createdAt: new Date(Number(rows[0]?.ms)),
    })
  })

  it('the command line and the API list rows with their times, and one continues where the other ended', async () => {
    const db = open()
    await emptyApplicationTables(db)
    await createOutbox().enqueue(
      db,
      [1, 2, 3].map((n) => ({
        type: 'a',
        payload: { n },
        availableAt: new Date(Date.UTC(2031, n, 4, 5, 6, 7)),
      })),
    )
    const expected = [3, 2, 1].map((n) => new Date(Date.UTC(2031, n, 4, 5, 6, 7)).toISOString())

    const { code, stdout } = await callLeasehold(['outbox', 'list', '--limit', '2', '--json'], {
      databaseUrl: urlOf(),
      workingDirectory: directory,
    })
    expect(code).toBe(0)
    const first = JSON.parse(stdout) as { events: { availableAt: string }[]; next: string }
    expect(first.events.map(({ availableAt }) => availableAt)).toEqual(expected.slice(0, 2))

    const get = await serve(db)
    const { items } = await get(`/outbox/events?limit=2&cursor=${toCursor(first.next)}`)
    expect(items.map(({ availableAt }) => availableAt)).toEqual(expected.slice(2))
    // Row-level security is what limits them to their own.
    expect(await get('/webhooks/endpoints', 'acme')).toEqual({ items: [], next: null })
  })

  it('the doctor finds what it found without them', async () => {
    expect(await findingsOf(open())).toEqual(before)
  })
})

it('the text of a time, of which cursors are made, means the same in all sessions', async () => {
  const other = new URL(url)
  other.searchParams.set('options', '-c DateStyle=SQL,MDY -c TimeZone=America/St_Johns')
  const urls = [url, other.href, pooler.urlOf(url)]
  const sessions = urls.map((each) => openDatabase({ url: each }))
  onTestFinished(async () => void (await Promise.all(sessions.map(async (db) => db.close()))))
  for (const session of sessions) {
    const { rows } = await session.query<{ at: string }>({
      text: `select (timestamptz '2026-03-04 05:06:07.123456+00')::text as at`,
    })
    for (const reader of sessions) {
      const read = await reader.query({
        text: `select $1::timestamptz = timestamptz '2026-03-04 05:06:07.123456+00' as same`,
        values: [rows[0]?.at],
      })
      expect(read.rows).toEqual([{ same: true }])
    }
  }
})
