import type { Client, Pool, PoolClient } from 'pg'
import { afterEach, describe, expect, expectTypeOf, it, vi } from 'vitest'
import { useDatabase, watchPoolClients } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase, type Database, type DatabaseEvent, type DatabaseOptions } from './database.ts'
import type { Queryable } from './queryable.ts'

useQuietProcess()
const database = useDatabase()
const opened: Database[] = []

function open(options: Partial<DatabaseOptions> = {}): Database {
  const db = openDatabase({ url: database.url, ...options })
  opened.push(db)
  return db
}

async function backendOf(db: Queryable): Promise<number | undefined> {
  const { rows } = await db.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })
  return rows[0]?.pid
}

afterEach(async () => {
  vi.restoreAllMocks()
  await Promise.all(opened.splice(0).map(async (db) => db.close()))
})

describe('settings', () => {
  it.each([
    ['maxConnections', 0],
    ['connectTimeoutMs', -1],
    ['queryTimeoutMs', 1.5],
    ['queryTimeoutMs', Number.NaN],
    ['queryTimeoutMs', 2 ** 31],
    ['maxConnectionAgeMs', 0],
  ])('the setting %s = %s is refused with an error that has its name and value', (name, value) => {
    expect(() => openDatabase({ url: database.url, [name]: value })).toThrow(
      expect.objectContaining({
        code: 'SETTING_INVALID',
        message: expect.stringContaining(`${name} is ${value}`),
      }),
    )
  })

  it.each(['', 'postgresql://user:s3cret@host:port/x'])(
    'a URL that cannot be parsed is refused with an error that does not repeat it',
    (url) => {
      expect(() => openDatabase({ url })).toThrow(
        expect.objectContaining({ code: 'SETTING_INVALID', message: expect.not.stringContaining('s3cret') }),
      )
    },
  )

  it('RULE-020-041: no more connections than maxConnections are opened, whatever the load', async () => {
    const db = open({ maxConnections: 3 })
    const pids = await Promise.all(
      Array.from({ length: 30 }, async () =>
        db.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid, pg_sleep(0.005)' }),
      ),
    )
    expect(new Set(pids.map(({ rows }) => rows[0]?.pid)).size).toBe(3)
  })

  it('a connection is replaced after maxConnectionAgeMs, also if it is never idle', async () => {
    const db = open({ maxConnections: 1, maxConnectionAgeMs: 100 })
    const before = await backendOf(db)
    await expect.poll(async () => backendOf(db), { interval: 1 }).not.toBe(before)
  })

  it('connections have the given application name', async () => {
    const { rows } = await open({ applicationName: 'relay 7' }).query({ text: 'show application_name' })
    expect(rows).toEqual([{ application_name: 'relay 7' }])
  })
})

describe('statements', () => {
  it("an SQL error is pg's own, unchanged, and its connection is reused", async () => {
    const db = open({ maxConnections: 1 })
    const before = await backendOf(db)
    await expect(db.query({ text: 'select 1/0' })).rejects.toMatchObject({ name: 'error', code: '22012' })
    expect(await backendOf(db)).toBe(before)
  })

  it('an int8 is returned as text, and no global type parser is changed', async () => {
    const { rows } = await open().query({ text: 'select 9007199254740993::int8 as token' })
    expect(rows).toEqual([{ token: '9007199254740993' }])
  })

  it('a client has one error listener while it is checked out, and checkouts leave no listener on it', async () => {
    const clients = watchPoolClients()
    const listening: number[] = []
    const db = open({ maxConnections: 1 })
    await db.transaction(async () => {
      listening.push(...[...clients].map((client) => client.listenerCount('error')))
    })
    for (let round = 0; round < 1_000; round += 1) await db.query({ text: 'select 1' })
    expect(listening).toEqual([1])
    // The remaining one is the pool's, for an idle client.
    expect([...clients].map((client) => client.listenerCount('error'))).toEqual([1])
  })
})

describe('prepared statements', () => {
  const named = { name: 'one', text: 'select $1::int + 1 as answer', values: [1] }
  const prepared = { text: 'select count(*)::int as prepared from pg_prepared_statements' }

  it('a statement with a name is prepared on its connection', async () => {
    const db = open({ maxConnections: 1 })
    await db.query(named)
    expect((await db.query(prepared)).rows).toEqual([{ prepared: 1 }])
  })

  it('with prepare: false no statement is prepared', async () => {
    const db = open({ maxConnections: 1, prepare: false })
    await db.query(named)
    expect((await db.query(prepared)).rows).toEqual([{ prepared: 0 }])
  })

  it.each([
    ['unknown to the server connection (26000)', [named, { text: 'deallocate all' }]],
    ['in use on the server connection (42P05)', [{ text: 'prepare one as select 2' }]],
  ])(
    'if the name is %s, the statement is sent once more, and names are no longer sent',
    async (_, before) => {
      const events: DatabaseEvent[] = []
      const db = open({ maxConnections: 1, onEvent: (event) => events.push(event) })
      for (const statement of before) await db.query(statement)
      expect((await db.query(named)).rows).toEqual([{ answer: 2 }])
      expect(events.map(({ type }) => type)).toEqual(['preparedStatementsOff'])
      await db.query({ text: 'deallocate all' })
      await db.query(named)
      expect((await db.query(prepared)).rows).toEqual([{ prepared: 0 }])
    },
  )

  it('inside a transaction the caller gets the error of an unknown name, and the next transaction works', async () => {
    const db = open({ maxConnections: 1 })
    await db.query(named)
    await db.query({ text: 'deallocate all' })
    await expect(db.transaction(async (tx) => tx.query(named))).rejects.toMatchObject({ code: '26000' })
    expect((await db.transaction(async (tx) => tx.query(named))).rows).toEqual([{ answer: 2 }])
  })

  it('a prepared statement whose table was altered is sent once more without its name', async () => {
    const db = open({ maxConnections: 1 })
    await db.query({ text: 'create table altered (a int)' })
    const all = { name: 'all', text: 'select * from altered' }
    await db.query(all)
    await db.query({ text: 'alter table altered add b int' })
    expect((await db.query(all)).rows).toEqual([])
    expect((await db.query(all)).rows).toEqual([])
  })
})

describe('close', () => {
  it('close() waits for running statements, refuses new ones, and may be called twice', async () => {
    const db = open({ maxConnections: 1 })
    const running = db.query({ text: 'select pg_sleep(0.2), 1 as done' })
    const waiting = db.query({ text: 'select 2 as done' })
    const closing = db.close()
    await expect(db.query({ text: 'select 3' })).rejects.toMatchObject({ code: 'DATABASE_CLOSED' })
    await expect(db.transaction(async () => 1)).rejects.toMatchObject({ code: 'DATABASE_CLOSED' })
    await Promise.all([closing, db.close()])
    expect((await running).rows).toMatchObject([{ done: 1 }])
    expect((await waiting).rows).toEqual([{ done: 2 }])
  })

  it('close() ends whatever still runs after queryTimeoutMs, and it rejects', async () => {
    const db = open({ maxConnections: 1, queryTimeoutMs: 1_000, connectTimeoutMs: 60_000 })
    const stuck = db.transaction(async (tx) => {
      await tx.query({ text: 'select 1' })
      await closing
      await tx.query({ text: 'select 2' })
    })
    const waiting = db.query({ text: 'select 3' })
    const outcomes = Promise.allSettled([stuck, waiting])
    const closing = db.close()
    await closing
    expect(await outcomes).toMatchObject([
      { status: 'rejected', reason: { code: 'DATABASE_CLOSED' } },
      { status: 'rejected', reason: { code: 'DATABASE_CLOSED' } },
    ])
  })

  it('a database that was never used closes', async () => {
    await expect(open().close()).resolves.toBeUndefined()
  })
})

it("pg's pool, client and pooled client, and our database, are all a Queryable", () => {
  expectTypeOf<Pool>().toExtend<Queryable>()
  expectTypeOf<Client>().toExtend<Queryable>()
  expectTypeOf<PoolClient>().toExtend<Queryable>()
  expectTypeOf<Database>().toExtend<Queryable>()
  expectTypeOf<{ query(text: number): void }>().not.toExtend<Queryable>()
})
