/** No caller slows down the others: how many connections to the database each may use, and who waits for them. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { useApi } from '../../../test/support/api.ts'
import { openSession } from '../../../test/support/database.ts'
import { createPortalLink } from '../../operations/api-sessions.ts'
import { type Database, openDatabase } from '../../postgres/index.ts'
import { type Api, createApi } from './api.ts'
import { ConnectionLimiter } from './limits.ts'

const { db, url, loginUrl, keys } = useApi()
type KeyName = keyof typeof keys

/** Less than one caller could use for itself. */
const POOL_SIZE = 4
const errors: unknown[] = []
let pool: Database
let api: Api
beforeAll(() => {
  pool = openDatabase({ url: loginUrl, maxConnections: POOL_SIZE, applicationName: 'limited api' })
  // Nothing here ends because its time is over.
  api = createApi({ db: pool, statementTimeoutMs: 120_000, onError: (error) => void errors.push(error) })
})
afterAll(async () => {
  await api.stop()
  await pool.close()
})

async function ask(key: KeyName, path: string, init: RequestInit = {}): Promise<Response> {
  const headers = { authorization: `Bearer ${keys[key]}` }
  return api.fetch(new Request(`http://localhost/api/v1${path}`, { headers, ...init }))
}

/** How many statements of the API wait for a lock. */
async function blockedStatements(): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select count(*)::int as count from pg_stat_activity
where application_name = 'limited api' and cardinality(pg_blocking_pids(pid)) > 0 and datname = current_database()`,
  })
  return rows[0]?.count ?? 0
}

async function lockEvents(): Promise<{ release: () => Promise<unknown> }> {
  const holder = await openSession(url)
  await holder.query('begin; lock table leasehold.outbox in access exclusive mode')
  return { release: async () => holder.query('rollback') }
}

const WAIT = { timeout: 30_000, interval: 10 }

it('one caller whose requests all wait for a lock does not delay the others', async () => {
  const lock = await lockEvents()
  const slow = Array.from({ length: 20 }, async () => ask('read', '/outbox/events'))
  await expect.poll(blockedStatements, WAIT).toBe(2)
  for (const path of ['/webhooks/endpoints', '/session', '/audit', '/workers'])
    expect((await ask('operate', path)).status, path).toBe(200)
  expect((await ask('tenantRead', '/webhooks/deliveries')).status).toBe(200)
  // A change, too.
  const endpoint = { method: 'POST', body: '{}' }
  expect((await ask('operate', '/webhooks/deliveries/1/retry', endpoint)).status).toBe(422)
  expect(await blockedStatements()).toBe(2)
  await lock.release()
  expect((await Promise.all(slow)).map(({ status }) => status)).toEqual(slow.map(() => 200))
})

it('a right key opens a session while another token waits for the database as often as it may', async () => {
  const open = async (body: object): Promise<Response> => {
    const sent = { method: 'POST', headers: { 'content-type': 'application/json' } }
    return api.fetch(new Request('http://localhost/api/v1/session', { ...sent, body: JSON.stringify(body) }))
  }
  const holder = await openSession(url)
  await holder.query('begin; lock table leasehold.api_portal_links in access exclusive mode')
  // Ten of them may ask, of which two are executed. The others wait for the list of links, as right ones would.
  const flood = Array.from({ length: 110 }, async () => open({ link: `lhl_${'x'.repeat(43)}` }))
  await expect.poll(blockedStatements, WAIT).toBe(3)
  expect((await open({ key: keys.operate })).status).toBe(200)
  await holder.query('rollback')
  expect((await Promise.all(flood)).map(({ status }) => status)).toContain(429)
})

it('the portals of a tenant, whatever their names, do not delay the others', async () => {
  const open = async (name: string): Promise<string> => {
    const sent = { method: 'POST', headers: { 'content-type': 'application/json' } }
    const { token } = await createPortalLink(
      db,
      { tenant: 'acme', role: 'read', name },
      { principal: 'test', keyId: null },
    )
    const body = JSON.stringify({ link: token })
    const opened = await api.fetch(new Request('http://localhost/api/v1/session', { ...sent, body }))
    // It opened a session, whose token it returns.
    return ((await opened.json()) as { bearer: string }).bearer
  }
  const bearers = await Promise.all(['ada', 'bob', 'eve'].map(open))
  const holder = await openSession(url)
  await holder.query('begin; lock table leasehold.webhook_outbox in access exclusive mode')
  const slow = bearers.flatMap((bearer) =>
    [1, 2].map(async () =>
      ask('read', '/webhooks/deliveries', { headers: { authorization: `Bearer ${bearer}` } }),
    ),
  )
  await expect.poll(blockedStatements, WAIT).toBe(2)
  for (const path of ['/webhooks/endpoints', '/session', '/audit', '/workers'])
    expect((await ask('operate', path)).status, path).toBe(200)
  expect(await blockedStatements()).toBe(2)
  await holder.query('rollback')
  expect((await Promise.all(slow)).map(({ status }) => status)).toEqual(slow.map(() => 200))
})

it('the overview uses no more connections than any other request', async () => {
  const lock = await lockEvents()
  const slow = [ask('read', '/overview'), ask('read', '/overview'), ask('read', '/overview')]
  await expect.poll(blockedStatements, WAIT).toBe(2)
  expect((await ask('operate', '/workers')).status).toBe(200)
  await lock.release()
  expect((await Promise.all(slow)).map(({ status }) => status)).toEqual([200, 200, 200])
})

it('clients that hang up give back their connections, and their places in the queue', async () => {
  const lock = await lockEvents()
  const gone = new AbortController()
  const slow = Array.from({ length: 20 }, async () => ask('read', '/outbox/events', { signal: gone.signal }))
  await expect.poll(blockedStatements, WAIT).toBe(2)
  gone.abort()
  await Promise.all(slow)
  // The lock is still held.
  expect((await ask('read', '/workers')).status).toBe(200)
  await expect.poll(blockedStatements, WAIT).toBe(0)
  await lock.release()
})

it('a change whose client hangs up while it runs is completed', async () => {
  const lock = await lockEvents()
  const gone = new AbortController()
  const body = JSON.stringify({ type: 'order.paid', payload: 1 })
  const headers = { authorization: `Bearer ${keys.operate}`, 'content-type': 'application/json' }
  const written = ask('operate', '/outbox/events', { method: 'POST', body, headers, signal: gone.signal })
  await expect.poll(blockedStatements, WAIT).toBe(1)
  gone.abort()
  await lock.release()
  expect((await written).status).toBe(201)
})

it('more than a hundred requests that wait are refused with Retry-After', async () => {
  const lock = await lockEvents()
  const slow = Array.from({ length: 102 }, async () => ask('read', '/outbox/events'))
  await expect.poll(blockedStatements, WAIT).toBe(2)
  const more = []
  // Those above may still be on their way.
  do more.push(ask('read', '/outbox/events'))
  while ((await Promise.race([...more, nextTurn()])) === undefined)
  const refused = await Promise.race(more)
  expect(refused.status).toBe(429)
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
  await expect(refused.json()).resolves.toMatchObject({ code: 'TOO_MANY_REQUESTS' })
  await lock.release()
  await Promise.all([...slow, ...more])
})

async function nextTurn(): Promise<undefined> {
  return new Promise((resolve) => {
    setImmediate(() => resolve(undefined))
  })
}

it('neither waiting nor hanging up is an error of the server', () => {
  expect(errors).toEqual([])
})

describe('a limit of connections', () => {
  /** Transactions that end when they are told to. */
  function stagedDatabase(): {
    readonly db: Database
    readonly started: string[]
    end: (name: string) => void
  } {
    const started: string[] = []
    const running = new Map<string, () => void>()
    const staged: Database = {
      async transaction(work) {
        return work({
          async query({ text }) {
            started.push(text)
            await new Promise<void>((resolve) => running.set(text, resolve))
            return { rows: [], rowCount: 0 }
          },
        })
      },
      query: async () => Promise.reject(new Error('outside of a transaction')),
      pipeline: async () => Promise.reject(new Error('outside of a transaction')),
      close: async () => Promise.resolve(),
    }
    return { db: staged, started, end: (name) => running.get(name)?.() }
  }

  it('lets those that wait start in the order in which they came, and none that comes later', async () => {
    const { db: staged, started, end } = stagedDatabase()
    const limiter = new ConnectionLimiter({ atOnce: 1, waitMs: 120_000 })
    const run = async (name: string): Promise<unknown> => limiter.limit(staged, 'ada').query({ text: name })
    const all = [run('a'), run('b'), run('c')]
    await expect.poll(() => started).toEqual(['a'])
    end('a')
    await all[0]
    all.push(run('d'))
    for (const name of ['b', 'c', 'd']) {
      await expect.poll(() => started.at(-1)).toBe(name)
      end(name)
    }
    await Promise.all(all)
    expect(started).toEqual(['a', 'b', 'c', 'd'])
  })

  it('refuses what has waited too long for other requests of the caller, and nothing of another caller', async () => {
    const { db: staged, started, end } = stagedDatabase()
    const limiter = new ConnectionLimiter({ atOnce: 1, waitMs: 1 })
    const first = limiter.limit(staged, 'ada').query({ text: 'first' })
    const late = limiter.limit(staged, 'ada').query({ text: 'late' })
    const refused = { code: 'TOO_MANY_REQUESTS' }
    await expect(late).rejects.toMatchObject(refused)
    const other = limiter.limit(staged, 'grace').query({ text: 'other' })
    await expect.poll(() => started).toEqual(['first', 'other'])
    end('first')
    end('other')
    await Promise.all([first, other])
  })

  it('a request waits for its own transactions as long as they run, and those left when it is answered are not made', async () => {
    const { db: staged, started, end } = stagedDatabase()
    const limiter = new ConnectionLimiter({ atOnce: 1, waitMs: 1 })
    const request = limiter.limit(staged, 'ada')
    const [first, second, third] = ['first', 'second', 'third'].map(async (text) => request.query({ text }))
    const late = limiter.limit(staged, 'ada').query({ text: 'late' })
    // By then the others would have given up as well.
    await expect(late).rejects.toMatchObject({ code: 'TOO_MANY_REQUESTS' })
    end('first')
    await first
    await expect.poll(() => started).toEqual(['first', 'second'])
    await request.close()
    await expect(third).rejects.toMatchObject({ code: 'TOO_MANY_REQUESTS' })
    end('second')
    await second
    expect(started).toEqual(['first', 'second'])
  })
})
