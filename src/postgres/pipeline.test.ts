import { afterEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { type Proxy, startProxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase, type Database, type DatabaseOptions } from './database.ts'
import { failedStatement } from './pipeline.ts'

useQuietProcess()
const database = useDatabase()
const toClose: { close(): Promise<void> }[] = []

function open(options: Partial<DatabaseOptions> = {}): Database {
  const db = openDatabase({ url: database.url, maxConnections: 1, ...options })
  toClose.push(db)
  return db
}

async function openProxy(): Promise<Proxy> {
  const proxy = await startProxy(database.url)
  toClose.unshift(proxy)
  return proxy
}

/** An empty table of its own. */
let tables = 0
async function newTable(db: Database): Promise<string> {
  tables += 1
  await db.query({ text: `create table public.written_${tables} (n int primary key)` })
  return `public.written_${tables}`
}

async function numbersIn(db: Database, table: string): Promise<unknown[]> {
  const { rows } = await db.query({ text: `select n from ${table} order by n` })
  return rows.map(({ n }) => n)
}

async function failureOf(work: Promise<unknown>): Promise<unknown> {
  return work.then(
    (value) => expect.fail(`It succeeded: ${JSON.stringify(value)}`),
    (error: unknown) => error,
  )
}

const PID = { text: 'select pg_backend_pid() as pid' }

afterEach(async () => {
  for (const it of toClose.splice(0).toReversed()) await it.close()
})

describe('results', () => {
  it('one for each statement, in their order', async () => {
    const db = open()
    const table = await newTable(db)
    const [inserted, arrays, none, empty] = await db.pipeline<
      [{ n: number }, [number, string], object, object]
    >([
      { name: 'insert', text: `insert into ${table} values ($1), ($2) returning n`, values: [1, 2] },
      { text: `select n, n::text as t from ${table} order by n`, rowMode: 'array' },
      { name: 'none', text: `update ${table} set n = n where n > 2` },
      { text: '' },
    ])
    expect(inserted).toMatchObject({ rows: [{ n: 1 }, { n: 2 }], rowCount: 2 })
    expect(arrays.rows).toEqual([
      [1, '1'],
      [2, '2'],
    ])
    expect(none).toMatchObject({ rows: [], rowCount: 0 })
    expect(empty).toMatchObject({ rows: [], rowCount: null })
  })

  it('all statements are one round trip and one transaction', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url })
    await db.query(PID)
    const { roundTrips } = proxy
    const xid = { name: 'xid', text: 'select pg_current_xact_id()::text as xid' }
    const [first, second, third] = await db.pipeline([xid, { text: xid.text }, xid])
    expect(proxy.roundTrips).toBe(roundTrips + 1)
    expect(second?.rows).toEqual(first?.rows)
    expect(third?.rows).toEqual(first?.rows)
  })
})

describe('errors', () => {
  it('the error tells which statement failed, nothing is written, and the connection is used again', async () => {
    const db = open()
    const table = await newTable(db)
    const before = await db.query(PID)
    const insert = { name: 'insert', text: `insert into ${table} values ($1)` }
    const error = await failureOf(
      db.pipeline([
        { ...insert, values: [1] },
        { name: 'fails', text: 'select 1 / $1::int', values: [0] },
        { name: 'never', text: 'select 3' },
      ]),
    )
    expect(error).toMatchObject({ name: 'error', code: '22012' })
    expect(failedStatement(error)).toBe(1)
    expect(await numbersIn(db, table)).toEqual([])
    await db.pipeline([
      { ...insert, values: [2] },
      { name: 'never', text: 'select 3' },
    ])
    expect(await numbersIn(db, table)).toEqual([2])
    expect((await db.query(PID)).rows).toEqual(before.rows)
  })

  it('queryTimeoutMs bounds the whole pipeline', async () => {
    const db = open({ queryTimeoutMs: 1_000 })
    const before = await db.query(PID)
    const sleep = { name: 'sleep', text: 'select pg_sleep(0.7)' }
    await expect(db.pipeline([sleep, sleep])).rejects.toMatchObject({ code: 'QUERY_TIMEOUT' })
    expect((await db.query(PID)).rows).not.toEqual(before.rows)
  })
})
