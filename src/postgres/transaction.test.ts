import { afterAll, beforeAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase, type Database } from './database.ts'
import type { Queryable } from './queryable.ts'

useQuietProcess()
const database = useDatabase()
let db: Database

beforeAll(async () => {
  db = openDatabase({ url: database.url, maxConnections: 2 })
  await db.query({ text: 'create table marks (id int primary key deferrable initially deferred)' })
})

afterAll(async () => {
  await db.close()
})

async function mark(to: Queryable, id: number): Promise<void> {
  await to.query({ text: 'insert into marks values ($1)', values: [id] })
}

async function marked(id: number): Promise<boolean> {
  return (await db.query({ text: 'select from marks where id = $1', values: [id] })).rowCount === 1
}

async function backendOf(to: Queryable): Promise<number | undefined> {
  return (await to.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })).rows[0]?.pid
}

async function terminate(pid: number | undefined): Promise<void> {
  await db.query({ text: 'select pg_terminate_backend($1, 5000)', values: [pid] })
}

it('a transaction commits what the work did, and returns what the work returned', async () => {
  expect(
    await db.transaction(async (tx) => {
      await mark(tx, 1)
      expect(await marked(1)).toBe(false)
      return 'done'
    }),
  ).toBe('done')
  expect(await marked(1)).toBe(true)
})

it("a transaction rolls back when the work throws, and rejects with the work's own error", async () => {
  const reason = new Error('changed my mind')
  const outcome = db.transaction(async (tx) => {
    await mark(tx, 2)
    throw reason
  })
  await expect(outcome).rejects.toBe(reason)
  expect(await marked(2)).toBe(false)
})

it('statements of one transaction that are sent together run one after the other', async () => {
  const answers = await db.transaction(async (tx) =>
    Promise.all([
      tx.query({ text: 'select 1 as n' }),
      tx.query({ text: 'select 2 as n' }),
      tx.query({ text: 'select 3 as n' }),
    ]),
  )
  expect(answers.flatMap(({ rows }) => rows)).toEqual([{ n: 1 }, { n: 2 }, { n: 3 }])
})

it('a COMMIT that fails rejects with its SQL error', async () => {
  const outcome = db.transaction(async (tx) => {
    await mark(tx, 3)
    await mark(tx, 3)
  })
  await expect(outcome).rejects.toMatchObject({ code: '23505' })
  expect(await marked(3)).toBe(false)
})

it('a COMMIT that PostgreSQL turned into a ROLLBACK rejects with the error that caused it', async () => {
  const outcome = db.transaction(async (tx) => {
    await mark(tx, 4)
    await tx.query({ text: 'select 1/0' }).catch(() => undefined)
    await tx.query({ text: 'select 2' }).catch(() => undefined)
    return 'looks fine'
  })
  await expect(outcome).rejects.toMatchObject({ code: '22012' })
  expect(await marked(4)).toBe(false)
})

it('a transaction whose connection was lost rejects, also when the work did not notice', async () => {
  const outcome = db.transaction(async (tx) => {
    await mark(tx, 5)
    await terminate(await backendOf(tx))
    return 'looks fine'
  })
  await expect(outcome).rejects.toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
  expect(await marked(5)).toBe(false)
})

it('every statement after a lost connection rejects, and the connection is not reused', async () => {
  let lost: number | undefined
  const outcome = db.transaction(async (tx) => {
    lost = await backendOf(tx)
    await terminate(lost)
    await expect(tx.query({ text: 'select 1' })).rejects.toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
    await expect(tx.query({ text: 'select 2' })).rejects.toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
  })
  await expect(outcome).rejects.toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
  const pids = await Promise.all([backendOf(db), backendOf(db), backendOf(db)])
  expect(pids).not.toContain(lost)
})

it('a COMMIT without an answer rejects with an error that calls the outcome unknown', async () => {
  const proxy = await startProxy(database.url)
  const slow = openDatabase({ url: proxy.url, queryTimeoutMs: 1_000 })
  const outcome = slow.transaction(async (tx) => {
    await mark(tx, 6)
    proxy.swallow(true)
  })
  await expect(outcome).rejects.toMatchObject({
    code: 'QUERY_TIMEOUT',
    message: expect.stringMatching(/committed is unknown/),
  })
  await slow.close()
  await proxy.close()
})

it('a connection lost during COMMIT rejects with an error that calls the outcome unknown', async () => {
  const proxy = await startProxy(database.url)
  const cut = openDatabase({ url: proxy.url })
  const outcome = cut.transaction(async (tx) => {
    await mark(tx, 7)
    proxy.swallow(true)
    // After COMMIT was sent, which is before the next turn of the event loop.
    setImmediate(() => proxy.cut())
  })
  await expect(outcome).rejects.toMatchObject({
    code: 'DATABASE_UNAVAILABLE',
    message: expect.stringMatching(/committed is unknown/),
  })
  await cut.close()
  await proxy.close()
})

it('a statement that times out ends its transaction and destroys the connection', async () => {
  let pid: number | undefined
  const outcome = db.transaction(
    async (tx) => {
      pid = await backendOf(tx)
      await mark(tx, 8)
      await tx.query({ text: 'select pg_sleep(60)' }).catch(() => undefined)
      await mark(tx, 9)
    },
    { queryTimeoutMs: 1_000 },
  )
  await expect(outcome).rejects.toMatchObject({ code: 'QUERY_TIMEOUT' })
  expect(await marked(8)).toBe(false)
  expect(await Promise.all([backendOf(db), backendOf(db)])).not.toContain(pid)
})

it('a statement sent after the end of its transaction is refused', async () => {
  let late: Queryable | undefined
  await db.transaction(async (tx) => {
    late = tx
  })
  await expect(late?.query({ text: 'select 1' })).rejects.toMatchObject({ code: 'DATABASE_CLOSED' })
})

it('a connection with an open transaction is not given to the next caller', async () => {
  const one = openDatabase({ url: database.url, maxConnections: 1 })
  await one.query({ text: 'begin' })
  await mark(one, 10)
  expect(await marked(10)).toBe(true)
  await one.close()
})
