import { once } from 'node:events'
import { createServer } from 'node:net'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { useDatabase, watchPoolClients } from '../../test/support/database.ts'
import { startProxy, type Proxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase, type Database, type DatabaseEvent, type DatabaseOptions } from './database.ts'
import type { Queryable } from './queryable.ts'

useQuietProcess()
const database = useDatabase()
const toClose: { close(): Promise<void> }[] = []
const unavailable = { code: 'DATABASE_UNAVAILABLE' }

function open(options: Partial<DatabaseOptions> = {}): Database {
  const db = openDatabase({ url: database.url, ...options })
  toClose.push(db)
  return db
}

async function openProxy(): Promise<Proxy> {
  const proxy = await startProxy(database.url)
  toClose.unshift(proxy)
  return proxy
}

async function backendOf(db: Queryable): Promise<number | undefined> {
  return (await db.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })).rows[0]?.pid
}

afterEach(async () => {
  vi.restoreAllMocks()
  for (const it of toClose.splice(0).toReversed()) await it.close()
})

describe('a terminated backend', () => {
  it('an idle connection that is lost emits an event, and the next statement gets a new connection', async () => {
    let db = open()
    const lost = new Promise<DatabaseEvent>((resolve) => {
      db = open({ maxConnections: 1, onEvent: resolve })
    })
    const before = await backendOf(db)
    await open().query({ text: 'select pg_terminate_backend($1, 5000)', values: [before] })
    expect(await lost).toMatchObject({ type: 'connectionLost', error: unavailable })
    expect(await backendOf(db)).not.toBe(before)
  })

  it('a statement whose connection is lost rejects, and the next statement works', async () => {
    const events: DatabaseEvent[] = []
    const db = open({ maxConnections: 1, onEvent: (event) => events.push(event) })
    const outcome = db.query({ text: 'select pg_terminate_backend(pg_backend_pid()), pg_sleep(60)' })
    await expect(outcome).rejects.toMatchObject({ ...unavailable, cause: { code: '57P01' } })
    expect(events).toMatchObject([{ type: 'connectionLost' }])
    expect(await backendOf(db)).toBeTypeOf('number')
  })
})

describe('a statement that takes too long', () => {
  it('a statement that has succeeded is not reported as failed when the connection is lost right after it', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url, maxConnections: 1 })
    await db.query({ text: 'create table public.written (n int)' })
    // It is slow, so that its plan is discarded.
    proxy.cutAt('discard plans')
    const { rowCount } = await db.query({
      name: 'slow',
      text: 'insert into public.written select 1 from pg_sleep(0.2)',
    })
    expect(rowCount).toBe(1)
    expect((await db.query({ text: 'select n from public.written' })).rows).toEqual([{ n: 1 }])
  })

  it('a statement that exceeds its timeout rejects, emits an event, and its connection is destroyed', async () => {
    const events: DatabaseEvent[] = []
    const db = open({ maxConnections: 1, queryTimeoutMs: 1_000, onEvent: (event) => events.push(event) })
    const before = await backendOf(db)
    await expect(db.query({ text: 'select pg_sleep(60)' })).rejects.toMatchObject({
      code: 'QUERY_TIMEOUT',
      message: expect.stringContaining('queryTimeoutMs = 1000 ms'),
    })
    expect(events).toEqual([{ type: 'queryTimedOut', text: 'select pg_sleep(60)', timeoutMs: 1_000 }])
    expect(await backendOf(db)).not.toBe(before)
  })

  it('a connection that has answered meanwhile is retained', async () => {
    const db = open({ maxConnections: 2, queryTimeoutMs: 1_000 })
    const slow = db.query({ text: 'select pg_sleep(60)' }).catch((error: unknown) => error)
    const running = "select from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"
    // Nothing tells when a statement begins to run.
    while ((await db.query({ text: running })).rowCount === 0);
    const before = await backendOf(db)
    expect(await slow).toMatchObject({ code: 'QUERY_TIMEOUT' })
    expect(await backendOf(db)).toBe(before)
  })

  it('a pool of 2 is still usable after 20 statements have timed out', async () => {
    const db = open({ maxConnections: 2, queryTimeoutMs: 500, connectTimeoutMs: 60_000 })
    const outcomes = await Promise.allSettled(
      Array.from({ length: 20 }, async () => db.query({ text: 'select pg_sleep(60)' })),
    )
    expect(outcomes.map((outcome) => outcome.status === 'rejected' && outcome.reason.code)).toEqual(
      outcomes.map(() => 'QUERY_TIMEOUT'),
    )
    expect(await Promise.all([backendOf(db), backendOf(db)])).toHaveLength(2)
  })

  it('an answer that arrived while a handler blocked the event loop is not a timeout', async () => {
    const db = open({ queryTimeoutMs: 1_000 })
    await backendOf(db)
    const answer = backendOf(db)
    await new Promise((resolve) => setImmediate(resolve))
    const until = performance.now() + 1_200
    while (performance.now() < until);
    expect(await answer).toBeTypeOf('number')
  })

  it('a statement that exceeds its timeout is cancelled in the server', async () => {
    const db = open({ maxConnections: 1, queryTimeoutMs: 100, applicationName: 'to be cancelled' })
    await expect(db.query({ text: 'select pg_sleep(3600)' })).rejects.toMatchObject({ code: 'QUERY_TIMEOUT' })
    const observer = open()
    // PostgreSQL does not notify us when another backend ends, so this polls.
    await expect
      .poll(
        async () =>
          (
            await observer.query({
              text: "select 1 from pg_stat_activity where application_name = 'to be cancelled' and datname = current_database()",
            })
          ).rowCount,
        { timeout: 120_000 },
      )
      .toBe(0)
  })
})

describe('a database that cannot be reached', () => {
  it('waiting for a free connection is bounded, and the error names the settings', async () => {
    // It is the limit of connecting as well, which a busy machine must be able to keep.
    const db = open({ maxConnections: 1, connectTimeoutMs: 2_000 })
    await db.transaction(async () => {
      await expect(db.query({ text: 'select 1' })).rejects.toMatchObject({
        ...unavailable,
        message: expect.stringMatching(/connectTimeoutMs = 2000 ms.*maxConnections = 1 /),
      })
    })
    expect(await backendOf(db)).toBeTypeOf('number')
  })

  it('a refused connection rejects, and statements work once the server is back', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url })
    await proxy.refuse()
    await expect(db.query({ text: 'select 1' })).rejects.toMatchObject({
      ...unavailable,
      cause: { code: 'ECONNREFUSED' },
    })
    await expect(db.transaction(async () => 1)).rejects.toMatchObject(unavailable)
    await proxy.accept()
    expect(await backendOf(db)).toBeTypeOf('number')
  })

  it('a restart of the server rejects running statements, and the pool recovers afterwards', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url, maxConnections: 3 })
    await Promise.all([backendOf(db), backendOf(db), backendOf(db)])
    const running = db.query({ text: 'select pg_sleep(60)' })
    const inTransaction = db.transaction(async (tx) => {
      await tx.query({ text: 'select 1' })
      await proxy.refuse()
      proxy.cut()
      await tx.query({ text: 'select 2' })
    })
    await expect(inTransaction).rejects.toMatchObject(unavailable)
    await expect(running).rejects.toMatchObject(unavailable)
    await expect(db.query({ text: 'select 3' })).rejects.toMatchObject(unavailable)
    await proxy.accept()
    expect(await Promise.all([backendOf(db), backendOf(db), backendOf(db)])).toHaveLength(3)
    // A backend that sleeps does not notice that its connection was reset.
    await db.query({
      text: "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and query = 'select pg_sleep(60)'",
    })
  })

  it('in a network that drops every packet, statements, transactions and new connections end within their timeouts', async () => {
    const proxy = await openProxy()
    const db = open({ url: proxy.url, maxConnections: 2, connectTimeoutMs: 1_000, queryTimeoutMs: 1_000 })
    await Promise.all([backendOf(db), backendOf(db)])
    proxy.swallow(true)
    // The second connection has not answered since then either, so nothing more waits for it.
    await expect(db.query({ text: 'select 1' })).rejects.toMatchObject({ code: 'QUERY_TIMEOUT' })
    await expect(db.transaction(async () => 1)).rejects.toMatchObject(unavailable)
    await expect(db.query({ text: 'select 2' })).rejects.toMatchObject(unavailable)
    proxy.swallow(false)
    expect(await backendOf(db)).toBeTypeOf('number')
  })

  it('after a server has vanished without a word, one statement times out, and the next one goes to another host', async () => {
    const [vanishing, other] = [await openProxy(), await openProxy()]
    const { host } = new URL(other.url)
    const url = vanishing.url.replace(/(@[^/]*)/, `$1,${host}`)
    const db = open({ url, maxConnections: 3, connectTimeoutMs: 2_000, queryTimeoutMs: 2_000 })
    await Promise.all([backendOf(db), backendOf(db), backendOf(db)])
    expect([vanishing.connections, other.connections]).toEqual([3, 0])
    vanishing.swallow(true)
    await expect(backendOf(db)).rejects.toMatchObject({ code: 'QUERY_TIMEOUT' })
    await Promise.all([backendOf(db), backendOf(db), backendOf(db)])
    expect(other.connections).toBeGreaterThan(0)
  })

  it('in a network that drops every packet, close() leaves no socket open', async () => {
    const proxy = await openProxy()
    const clients = watchPoolClients()
    const db = open({ url: proxy.url, maxConnections: 2 })
    await Promise.all([backendOf(db), backendOf(db)])
    proxy.swallow(true)
    await db.close()
    expect([...clients].map((client) => client.connection.stream.destroyed)).toEqual([true, true])
  })

  it('a connection with an unfinished transaction is destroyed at once, without waiting for the server', async () => {
    const clients = watchPoolClients()
    await open().query({ text: 'begin' })
    expect([...clients].map((client) => client.connection.stream.destroyed)).toEqual([true])
  })

  it('a server with too many connections (53300) is unavailable', async () => {
    const admin = open()
    const role = `${database.name.slice(0, 40)}_limited`
    await admin.query({ text: `create role "${role}" login password 'limited' connection limit 1` })
    const url = new URL(database.url)
    url.username = role
    url.password = 'limited'
    const db = open({ url: url.href, maxConnections: 2 })
    await db.transaction(async () => {
      await expect(db.query({ text: 'select 1' })).rejects.toMatchObject({
        ...unavailable,
        cause: { code: '53300' },
      })
    })
    await db.close()
    await admin.query({ text: `drop role "${role}"` })
  })

  it.each(['57P03', '57P01', '08P01'])(
    'a server or pooler that answers with %s is unavailable',
    async (state) => {
      const server = createServer((socket) => {
        socket.on('error', () => undefined)
        socket.once('data', () => socket.end(fatal(state)))
      }).listen(0, '127.0.0.1')
      await once(server, 'listening')
      const address = server.address()
      const port = typeof address === 'object' && address !== null ? address.port : 0
      const db = open({ url: `postgresql://somebody@127.0.0.1:${port}/x` })
      await expect(db.query({ text: 'select 1' })).rejects.toMatchObject({
        ...unavailable,
        cause: { code: state },
      })
      server.close()
      await once(server, 'close')
    },
  )

  it('a wrong password rejects with the error that PostgreSQL sent', async () => {
    const url = new URL(database.url)
    url.password = 'wrong'
    await expect(open({ url: url.href }).query({ text: 'select 1' })).rejects.toMatchObject({
      code: '28P01',
      name: 'error',
    })
  })
})

/** An ErrorResponse of the protocol. */
function fatal(state: string): Buffer {
  const body = Buffer.from(`SFATAL\0VFATAL\0C${state}\0Mnot now\0\0`)
  const head = Buffer.alloc(5)
  head.write('E')
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}
