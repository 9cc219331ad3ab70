/** Whatever statement writes a committed event, and wherever the table is moved to: the event is published, in order. */
import { once } from 'node:events'
import { Client } from 'pg'
import postgres from 'postgres'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import { withAdmin, withDatabase } from '../../test/support/admin.ts'
import { eventually } from '../../test/support/brokers/eventually.ts'
import { useDatabase } from '../../test/support/database.ts'
import { makeEvents, outboxStates } from '../../test/support/outbox-rows.ts'
import { recording, statuses, useRelays } from '../../test/support/running-relay.ts'
import {
  findClientPrograms,
  runClientProgram,
  startServer,
  type TestServer,
} from '../../test/support/server.ts'
import { openLeaseStore } from '../lease/index.ts'
import { type Database, openDatabase } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { describeSchema } from '../postgres/schema.ts'
import { outboxTable } from './table.ts'

const { url } = useDatabase()
const startRelay = useRelays(url)

/** Runs a relay until there is nothing more to publish; returns the types of events, by key and in their order. */
async function publish(db: Database, databaseUrl = url): Promise<Record<string, string[]>> {
  const publisher = recording()
  const settings = { reaperIntervalMs: 50 }
  const { runtime } = await startRelay({ publisher, settings }, { databaseUrl })
  await eventually(async () => expect(await openEvents(db)).toBe(0))
  await runtime.stop()
  const keys: Record<string, string[]> = {}
  for (const { orderingKey, type } of publisher.published) (keys[orderingKey ?? 'none'] ??= []).push(type)
  keys['none']?.sort()
  return keys
}

/** Events in flight, and events that are due and can be claimed, in one snapshot. Those of a parked key cannot. */
async function openEvents(db: Database): Promise<number | undefined> {
  const { rows } = await db.query<{ count: number }>({
    text: `select count(*)::int as count from leasehold.outbox as o
      where status = 'CLAIMED' or (status = 'PENDING' and available_at <= now()
        and not exists (select from leasehold.outbox as p where p.ordering_key = o.ordering_key and p.id < o.id
          and (p.parked or (p.status = 'PENDING' and p.available_at > now()))))`,
  })
  return rows[0]?.count
}

async function payloads(db: Database): Promise<unknown[]> {
  const { rows } = await db.query<{ payload: unknown }>({ text: 'select payload from leasehold.outbox' })
  return rows.map(({ payload }) => payload)
}

describe('LIFE-18: an event is published that was written by', () => {
  const db = openDatabase({ url })
  afterAll(async () => db.close())
  beforeEach(async () => {
    await db.query({ text: 'truncate leasehold.outbox restart identity' })
  })

  const EVENTS = `(values ('a1', 'a'), ('x', null), ('a2', 'a'), ('b1', 'b')) as event (type, key)`
  const EXPECTED = { a: ['a1', 'a2'], b: ['b1'], none: ['x'] }

  async function write(...statements: readonly string[]): Promise<void> {
    const client = new Client({ connectionString: url })
    await client.connect()
    try {
      for (const statement of statements) await client.query(statement)
    } finally {
      await client.end()
    }
  }

  it('INSERT … SELECT, also within a WITH clause', async () => {
    await write(
      `insert into leasehold.outbox (event_type, ordering_key, payload) select type, key, '{}' from ${EVENTS}`,
      `with written as (
        insert into leasehold.outbox (event_type, ordering_key, payload) values ('a3', 'a', '1') returning id
      ) select id from written`,
    )
    expect(await publish(db)).toEqual({ ...EXPECTED, a: ['a1', 'a2', 'a3'] })
  })

  it('COPY', async () => {
    const sql = postgres(url, { max: 1 })
    try {
      const into = await sql`copy leasehold.outbox (event_type, ordering_key, payload) from stdin`.writable()
      const ended = once(into, 'finish')
      into.end('a1\ta\t{}\nx\t\\N\t{}\na2\ta\t{"n": 2}\nb1\tb\t{}\n')
      await ended
    } finally {
      await sql.end()
    }
    expect(await publish(db)).toEqual(EXPECTED)
  })

  it('MERGE', async () => {
    const merge = `merge into leasehold.outbox as o
using (select type, key, md5(type)::uuid as event_id from ${EVENTS}) as event
on o.event_id = event.event_id and o.bucket = 0
when matched and o.status = 'PENDING' then update set payload = '{"merged": true}'
when not matched then insert (event_id, event_type, ordering_key, payload) values (event_id, type, key, '{}')`
    await write(merge, merge)
    expect(await publish(db)).toEqual(EXPECTED)
    expect(await payloads(db)).toEqual(Array.from({ length: 4 }, () => ({ merged: true })))
    await write(merge)
    expect(await statuses(db)).toEqual({ PUBLISHED: 4 })
  })

  it('INSERT … ON CONFLICT DO NOTHING and DO UPDATE', async () => {
    const insert = `insert into leasehold.outbox (event_id, event_type, ordering_key, payload)
select md5(type)::uuid, type, key, '{}' from ${EVENTS} order by key, type
on conflict (event_id, bucket) where event_id_given do`
    await write(
      `${insert} nothing`,
      `${insert} nothing`,
      `${insert} update set payload = '{"updated": true}'`,
    )
    expect(await payloads(db)).toEqual(Array.from({ length: 4 }, () => ({ updated: true })))
    expect(await publish(db)).toEqual(EXPECTED)
    await write(`${insert} update set payload = '{"published": "before"}'`)
    expect(await statuses(db)).toEqual({ PUBLISHED: 4 })
  })

  it('a session whose triggers do not fire, because session_replication_role is replica', async () => {
    await write(
      'set session_replication_role = replica',
      `insert into leasehold.outbox (event_type, ordering_key, payload) select type, key, '{}' from ${EVENTS}`,
    )
    expect(await publish(db)).toEqual(EXPECTED)
  })

  it('a transaction that commits late: the events of its key are published before those with greater ids that still wait', async () => {
    const late = new Client({ connectionString: url })
    await late.connect()
    try {
      await late.query('begin')
      await late.query(
        `insert into leasehold.outbox (event_type, ordering_key, payload) values ('a1', 'a', '{}')`,
      )
      await write(`insert into leasehold.outbox (event_type, ordering_key, payload, available_at)
values ('b1', 'b', '{}', now()), ('a2', 'a', '{}', now() + interval '1 hour')`)
      expect(await publish(db)).toEqual({ b: ['b1'] })
      await late.query('commit')
    } finally {
      await late.end()
    }
    expect(await publish(db)).toEqual({ a: ['a1'] })
    await write(`update leasehold.outbox set available_at = now()`)
    expect(await publish(db)).toEqual({ a: ['a2'] })
  })
})

/** Events in all four states, each kind with a key and without. */
async function writeAllStates(db: Database): Promise<void> {
  await makeEvents(db, 2, { status: 'PUBLISHED', type: 'published', key: `case n when 2 then 'k' end` })
  await makeEvents(db, 2, {
    status: 'DEAD',
    type: 'dead',
    error: 'refused',
    key: `case n when 2 then 'k' end`,
  })
  await makeEvents(db, 1, { status: 'DEAD', type: 'parked', key: `'parked'`, parked: true })
  await makeEvents(db, 1, { type: 'waits for the parked', key: `'parked'` })
  await makeEvents(db, 2, { status: 'CLAIMED', type: 'claimed', key: `case n when 2 then 'k' end` })
  await makeEvents(db, 2, { type: 'pending', key: `case n when 2 then 'k' end` })
  await makeEvents(db, 1, { type: 'suspect', expiries: 3, attempts: 3 })
}

const AFTER_RESTORE = { none: ['claimed', 'pending', 'suspect'], k: ['claimed', 'pending'] }

/** What was in flight has lost its relay: the reaper takes it back when the lease is over. */
async function publishRestored(db: Database, databaseUrl: string): Promise<Record<string, string[]>> {
  await db.query({ text: `update leasehold.outbox set locked_until = now() where status = 'CLAIMED'` })
  return publish(db, databaseUrl)
}

const programs = await findClientPrograms()

describe.skipIf(programs === undefined)('LIFE-18: after pg_dump and pg_restore', () => {
  const { pgDump = '', pgRestore = '', ...binaries } = programs ?? { initdb: '', postgres: '' }
  const opened: Database[] = []
  let server: TestServer | undefined
  afterEach(async () => {
    await Promise.all(opened.splice(0).map(async (db) => db.close()))
    await server?.remove()
  })

  async function open(name: string): Promise<Database> {
    const url = server?.url ?? ''
    await withAdmin(url, async (admin) => {
      await admin.query(`create database ${name}`)
    })
    const db = openDatabase({ url: withDatabase(url, name) })
    opened.push(db)
    return db
  }

  it.each([
    ['of the whole database', [], false],
    // What the migrations wrote is there already.
    ['--data-only into a migrated database', ['--data-only', '--exclude-table=leasehold.migrations'], true],
  ])(
    'after a dump and restore %s, every state is as it was, and unpublished events are published',
    async (_, args, migrated) => {
      server = await startServer({ binaries })
      const source = await open('source')
      await migrate(source)
      await writeAllStates(source)
      const before = await outboxStates(source)
      const target = await open('target')
      if (migrated) await migrate(target)
      const dump = await runClientProgram(pgDump, [
        '--format=custom',
        ...args,
        `--dbname=${withDatabase(server.url, 'source')}`,
      ])
      await runClientProgram(
        pgRestore,
        ['--exit-on-error', `--dbname=${withDatabase(server.url, 'target')}`],
        dump,
      )
      expect(await outboxStates(target)).toEqual(before)
      // Otherwise `leasehold doctor` would find a difference.
      expect(await describeSchema(target, 'leasehold')).toBe(await describeSchema(source, 'leasehold'))
      await target.query({ text: `select leasehold.enqueue('new', '{}', 'k')` })
      expect(await publishRestored(target, withDatabase(server.url, 'target'))).toEqual({
        ...AFTER_RESTORE,
        k: [...AFTER_RESTORE.k, 'new'],
      })
      expect(await statuses(target)).toEqual({ PENDING: 1, DEAD: 3, PUBLISHED: 8 })
    },
  )

  it('after a dump and restore while keys have events in buckets of two numbers, they are published in order', async () => {
    server = await startServer({ binaries })
    const source = await open('source')
    await migrate(source, { buckets: 4 })
    // The bucket of d is 3 of 4 and 7 of 8, and that of f is 0 of 4 and 4 of 8.
    await makeEvents(source, 1, { type: 'd1', key: `'d'` })
    await makeEvents(source, 1, { type: 'f1', key: `'f'`, status: 'PUBLISHED' })
    await migrate(source, { buckets: 8 })
    await makeEvents(source, 1, { type: 'd2', key: `'d'` })
    await makeEvents(source, 1, { type: 'f2', key: `'f'` })
    const dump = await runClientProgram(pgDump, [
      '--format=custom',
      `--dbname=${withDatabase(server.url, 'source')}`,
    ])
    const target = await open('target')
    const targetUrl = withDatabase(server.url, 'target')
    await runClientProgram(pgRestore, ['--exit-on-error', `--dbname=${targetUrl}`], dump)
    await makeEvents(target, 1, { type: 'd3', key: `'d'` })
    await makeEvents(target, 1, { type: 'f3', key: `'f'` })
    const { rows } = await target.query({
      text: 'select event_type as type, bucket from leasehold.outbox order by event_type',
    })
    expect(rows).toEqual([
      { type: 'd1', bucket: 3 },
      { type: 'd2', bucket: 3 },
      { type: 'd3', bucket: 3 },
      { type: 'f1', bucket: 0 },
      { type: 'f2', bucket: 4 },
      { type: 'f3', bucket: 4 },
    ])
    expect(await publish(target, targetUrl)).toEqual({ d: ['d1', 'd2', 'd3'], f: ['f2', 'f3'] })
    await migrate(target, { buckets: 8 })
    const { rows: counts } = await target.query({
      text: 'select leasehold.previous_bucket_count() as previous',
    })
    expect(counts).toEqual([{ previous: 8 }])
  })
})

describe('LIFE-18: after logical replication to a second server', () => {
  const servers: TestServer[] = []
  const opened: Database[] = []
  afterAll(async () => {
    await Promise.all(opened.map(async (db) => db.close()))
    await Promise.all(servers.map(async (server) => server.remove()))
  })

  async function migratedServer(): Promise<{ server: TestServer; db: Database }> {
    const server = await startServer({ settings: { wal_level: 'logical' } })
    servers.push(server)
    const db = openDatabase({ url: server.url })
    opened.push(db)
    await migrate(db)
    return { server, db }
  }

  it('a second server that takes over when the first one dies publishes every unpublished event, in order', async () => {
    const [first, second] = await Promise.all([migratedServer(), migratedServer()])
    await writeAllStates(first.db)
    await first.db.query({ text: 'create publication leasehold for table leasehold.outbox' })
    await second.db.query({
      text: `create subscription leasehold connection '${first.server.url}' publication leasehold`,
    })
    // Changes after the first copy: events that are claimed and published, and new ones.
    await makeEvents(first.db, 3, { type: 'replicated', key: `'r'` })
    const store = await openLeaseStore(first.db, outboxTable(), { owner: 'test' })
    const { claimed } = await store.claim({ limit: 1, leaseMs: 600_000 })
    await store.settle(
      'done',
      claimed.map(({ lease }) => lease),
    )
    const before = await outboxStates(first.db)
    await eventually(async () => expect(await outboxStates(second.db)).toEqual(before))

    await first.server.stop('immediate')
    for (const text of [
      'alter subscription leasehold disable',
      'alter subscription leasehold set (slot_name = none)',
      'drop subscription leasehold',
      // As in every failover by logical replication: sequences are not replicated.
      `select setval(pg_get_serial_sequence('leasehold.outbox', 'id'), (select max(id) from leasehold.outbox))`,
    ])
      await second.db.query({ text })
    await second.db.query({ text: `select leasehold.enqueue('new', '{}', 'r')` })
    expect(await publishRestored(second.db, second.server.url)).toEqual({
      ...AFTER_RESTORE,
      r: ['replicated', 'replicated', 'new'],
    })
  })
})
