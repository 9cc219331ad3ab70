import { Client } from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { recording, useRelays } from '../../test/support/running-relay.ts'
import { startServer, type TestServer } from '../../test/support/server.ts'
import { examine } from '../doctor/doctor.ts'
import { enqueue } from '../outbox/index.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { Events } from './index.ts'

/** The smallest queue that PostgreSQL permits, in pages. */
const QUEUE = { max_notify_queue_pages: '64' }
let server: TestServer
let db: Database
let listening: Client
const startRelay = useRelays('')

beforeAll(async () => {
  server = await startServer({ settings: QUEUE })
  db = openDatabase({ url: server.url })
  await migrate(db)
  await db.query({ text: "create role stranger login password 'only-for-this-test'" })
  await fillQueue()
})
afterAll(async () => {
  await listening.end()
  await db.close()
  await server.remove()
})

/** What a login with nothing but CONNECT can do: listen, never read on, and send until nothing fits any more. */
async function fillQueue(): Promise<void> {
  const url = new URL(server.url)
  url.username = 'stranger'
  listening = new Client({ connectionString: url.href })
  await listening.connect()
  await listening.query('listen nothing')
  await listening.query('begin; select 1')
  const sending = new Client({ connectionString: url.href })
  await sending.connect()
  try {
    for (const size of [7_000, 700, 70, 7])
      for (let n = 0; ; n += 1) {
        const sent = await sending
          .query('select pg_notify($1, $2)', ['nothing', String(n).padEnd(size, '.')])
          .then(
            () => true,
            () => false,
          )
        if (!sent) break
      }
  } finally {
    await sending.end()
  }
}

it('events are written while the queue of NOTIFY is full, and found by polling', async () => {
  await db.transaction(async (tx) => {
    await enqueue(tx, { type: 'order.paid', payload: { id: 1 } })
  })
  const publisher = recording()
  const events = new Events()
  const settled = events.next('settled')
  await startRelay({ publisher, settings: { pollMs: 100 } }, { events, databaseUrl: server.url })
  await settled
  expect(publisher.published).toHaveLength(1)
})

it('settings are changed while the queue of NOTIFY is full', async () => {
  const change = db.query({
    text: `insert into leasehold.settings (name, value, changed_by) values ('outbox', '{"concurrency": 3}', 'test')`,
  })
  await expect(change).resolves.toMatchObject({ rowCount: 1 })
})

it('doctor reports that the queue of NOTIFY is filling up', async () => {
  const { findings } = await examine(db)
  expect(findings).toContainEqual({
    check: 'server-notifications',
    severity: 'warning',
    text: expect.stringMatching(/^The queue of NOTIFY is (?:9\d|100) % full/),
    remedy: expect.stringContaining('pg_stat_activity'),
  })
})
