/** Limits: requests, wrong keys, the time of a statement, a database that is away; and what the role of the API cannot do. */
import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Received, useApi } from '../../../test/support/api.ts'
import { openSession } from '../../../test/support/database.ts'
import { type Proxy, startProxy } from '../../../test/support/proxy.ts'
import { type Database, openDatabase, quoteIdentifier } from '../../postgres/index.ts'
import { type Api, createApi } from './api.ts'
import { RateLimiter } from './limits.ts'

const errors: unknown[] = []
const { send, db, url, loginUrl, keys } = useApi({
  // As good as no refill, however slow the machine is.
  requestsPerSecond: 0.001,
  burst: 40,
  statementTimeoutMs: 300,
  clientAddress: (request) => request.headers.get('x-client') ?? undefined,
  onError: (error) => void errors.push(error),
})

function numberIn({ headers }: Pick<Received, 'headers'>, name: string): number {
  return Number(headers.get(name) ?? Number.NaN)
}

describe('a bucket of tokens', () => {
  it('refuses what exceeds the burst, and allows as much as was refilled', () => {
    let now = 0
    const limiter = new RateLimiter({ burst: 2, perSecond: 1 }, { monotonicNow: () => now })
    expect([limiter.take('a'), limiter.take('a')].map(({ remaining }) => remaining)).toEqual([1, 0])
    expect(limiter.take('a')).toMatchObject({ allowed: false, retryInSeconds: 1, resetInSeconds: 2 })
    expect(limiter.take('b').allowed).toBe(true)
    now = 999
    expect(limiter.take('a').allowed).toBe(false)
    now = 1_000
    expect(limiter.take('a').allowed).toBe(true)
    expect(limiter.take('a').allowed).toBe(false)
  })

  it('remembers 10,000 callers at most', () => {
    const limiter = new RateLimiter({ burst: 1, perSecond: 1 }, { monotonicNow: () => 0 })
    limiter.take('first')
    for (let n = 0; n < 10_000; n += 1) limiter.take(`caller ${n}`)
    expect(limiter.look('first').allowed).toBe(true)
    expect(limiter.look('caller 1').allowed).toBe(false)
  })
})

it('every answer says how many requests are left, and one too many is refused with Retry-After', async () => {
  const answers = []
  for (let n = 0; n < 40; n += 1) answers.push(await send('GET', '/session', { key: 'tenantRead' }))
  expect(answers.map((answer) => numberIn(answer, 'ratelimit-remaining'))).toEqual(
    Array.from({ length: 40 }, (_, n) => 39 - n),
  )
  expect(numberIn(answers[0] ?? { headers: new Headers() }, 'ratelimit-limit')).toBe(40)
  const refused = await send('GET', '/session', { key: 'tenantRead' })
  expect(refused).toMatchObject({ status: 429, body: { code: 'TOO_MANY_REQUESTS' } })
  expect(numberIn(refused, 'retry-after')).toBeGreaterThan(100)
  expect(numberIn(refused, 'ratelimit-remaining')).toBe(0)
  // Others are not concerned.
  expect((await send('GET', '/session', { key: 'tenantOperate' })).status).toBe(200)
})

/** Sends wrong keys until they are refused for their number. */
async function exhaust(client: Readonly<Record<string, string>>): Promise<Received> {
  for (let n = 0; n < 100; n += 1) {
    const answer = await send('GET', '/session', { headers: { authorization: 'Bearer wrong', ...client } })
    if (answer.status !== 401) return answer
  }
  throw new Error('a hundred wrong keys were examined')
}

it('wrong keys are limited for each client', async () => {
  const refused = await exhaust({ 'x-client': '192.0.2.1' })
  expect(refused).toMatchObject({ status: 429, body: { code: 'TOO_MANY_REQUESTS' } })
  expect(numberIn(refused, 'retry-after')).toBeGreaterThanOrEqual(1)
  expect(numberIn(refused, 'retry-after')).toBeLessThanOrEqual(6)
  const session = await send('POST', '/session', {
    key: null,
    body: { key: 'wrong' },
    headers: { 'x-client': '192.0.2.1' },
  })
  expect(session.status).toBe(429)
  expect((await send('GET', '/session', { headers: { 'x-client': '192.0.2.2' } })).status).toBe(200)
})

it('clients that cannot be told apart do not lock each other out by wrong keys', async () => {
  expect((await exhaust({})).status).toBe(429)
  expect((await send('GET', '/session')).status).toBe(200)
})

it('opening a session with a wrong key counts as a failed attempt', async () => {
  const statuses = new Set<number>()
  for (let n = 0; n < 30; n += 1) {
    const { status } = await send('POST', '/session', {
      key: null,
      body: { key: 'wrong' },
      headers: { 'x-client': '192.0.2.3' },
    })
    statuses.add(status)
  }
  expect([...statuses]).toEqual([401, 429])
})

/** A key of the right form, with this id or any other. */
function wrongKey(id = randomBytes(16).toString('hex')): string {
  return `lhk_${id}_${randomBytes(32).toString('base64url')}`
}

it.each([
  ['what cannot be keys', () => ({ key: 'wrong' })],
  ['what cannot be links', () => ({ link: 'wrong' })],
  ['what is neither', () => ({})],
  ['wrong keys', () => ({ key: wrongKey() })],
  ['wrong links', () => ({ link: `lhl_${randomBytes(32).toString('base64url')}` })],
  ['keys that differ from it in the secret only', () => ({ key: wrongKey(keys.operate.split('_')[1]) })],
])('a right key opens a session from an address that sends too many of %s', async (_name, wrong) => {
  // More than a caller may send.
  const flood = await Promise.all(
    Array.from({ length: 60 }, async () => send('POST', '/session', { key: null, body: wrong() })),
  )
  expect(flood.some(({ status }) => status === 200)).toBe(false)
  for (let n = 0; n < 5; n += 1)
    expect((await send('POST', '/session', { key: null, body: { key: keys.operate } })).status).toBe(200)
})

it.each([
  ['in the header', 'GET'],
  ['of a new session', 'POST'],
])(
  'of wrong keys that are sent at the same time, %s, ten reach the database and the others are refused',
  async (_name, method) => {
    const own = openDatabase({ url: loginUrl })
    let asked = 0
    const counting: Database = {
      ...own,
      transaction: async (work, more) =>
        own.transaction(
          async (tx) =>
            work({
              query: async (statement) => {
                if (/api_keys where id = /.test(statement.text)) asked += 1
                return tx.query(statement)
              },
            }),
          more,
        ),
    }
    const api = createApi({ db: counting, onError: (error) => void errors.push(error) })
    const statusOf = async (key: string): Promise<number> => {
      const inHeader = { method, headers: { authorization: `Bearer ${key}` } }
      const inBody = {
        method,
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ key }),
      }
      const sent = method === 'GET' ? inHeader : inBody
      return (await api.fetch(new Request('http://localhost/api/v1/session', sent))).status
    }
    const statuses = await Promise.all(Array.from({ length: 60 }, async () => statusOf(wrongKey())))
    expect(statuses.toSorted((a, b) => a - b)).toEqual([
      ...Array.from({ length: 10 }, () => 401),
      ...Array.from({ length: 50 }, () => 429),
    ])
    expect(asked).toBe(10)
    // A right one is not refused for the wrong ones, though this process has never seen it.
    expect(await statusOf(keys.read)).toBe(200)
    await api.stop()
    await own.close()
  },
)

it('statements run without JIT, which takes longer than they do', async () => {
  const own = openDatabase({ url: loginUrl })
  const jit = new Set<unknown>()
  const looking: Database = {
    ...own,
    transaction: async (work, more) =>
      own.transaction(async (tx) => {
        const result = await work(tx)
        const { rows } = await tx.query<{ jit: string }>({
          text: "select current_setting('jit') as jit where current_setting('leasehold.principal', true) <> ''",
        })
        for (const row of rows) jit.add(row.jit)
        return result
      }, more),
  }
  await db.query({ text: `alter role ${quoteIdentifier(new URL(loginUrl).username)} set jit = on` })
  const api = createApi({ db: looking, onError: (error) => void errors.push(error) })
  const headers = { authorization: `Bearer ${keys.operate}` }
  const { status } = await api.fetch(new Request('http://localhost/api/v1/webhooks/deliveries', { headers }))
  expect([status, [...jit]]).toEqual([200, ['off']])
  await api.stop()
  await own.close()
})

it('a key opens no more sessions than it may send requests', async () => {
  const statuses: number[] = []
  for (let n = 0; n < 42; n += 1)
    statuses.push((await send('POST', '/session', { key: null, body: { key: keys.otherTenant } })).status)
  expect(statuses).toEqual([...Array.from({ length: 40 }, () => 200), 429, 429])
})

it('what cannot be a key or a link is refused without asking the database', async () => {
  const closed = openDatabase({ url: loginUrl })
  await closed.close()
  const api = createApi({ db: closed, onError: (error) => void errors.push(error) })
  const open = async (body: object): Promise<number> => {
    const headers = { 'content-type': 'application/json' }
    const sent = { method: 'POST', headers, body: JSON.stringify(body) }
    return (await api.fetch(new Request('http://localhost/api/v1/session', sent))).status
  }
  expect(await open({ key: 'wrong' })).toBe(401)
  expect(await open({ link: `lhl_${'x'.repeat(42)}` })).toBe(401)
  expect(await open({ key: 7 })).toBe(422)
  expect(await open({ key: 'x'.repeat(5_000) })).toBe(413)
  expect(errors).toEqual([])
  // It would be asked about what can be one.
  expect(await open({ key: wrongKey() })).toBeGreaterThanOrEqual(500)
  errors.splice(0)
  await api.stop()
})

describe('a statement that takes too long', () => {
  it('ends with 503 where it waits for a lock, and the next request works', async () => {
    const holder = await openSession(url)
    await holder.query('begin; lock table leasehold.outbox in access exclusive mode')
    const refused = await send('GET', '/outbox/events')
    expect(refused).toMatchObject({ status: 503, body: { code: 'QUERY_TIMEOUT' } })
    expect(numberIn(refused, 'retry-after')).toBeGreaterThanOrEqual(1)
    const written = await send('POST', '/outbox/events', { body: { type: 'a', payload: 1 } })
    expect(written).toMatchObject({ status: 503, body: { code: 'QUERY_TIMEOUT' } })
    await holder.query('rollback')
    expect(errors.splice(0)).toMatchObject([{ code: 'QUERY_TIMEOUT' }, { code: 'QUERY_TIMEOUT' }])
    expect((await send('GET', '/outbox/events')).body.items).toEqual([])
  })

  it('ends with 503 where it is slow itself, and what it has written is rolled back', async () => {
    await db.query({
      text: `create function leasehold.sleep() returns trigger language plpgsql as
$$ begin perform pg_sleep(600); return new; end $$;
create trigger sleep after insert on leasehold.outbox
  for each row when (new.event_type = 'slow') execute function leasehold.sleep();
grant execute on function leasehold.sleep() to public`,
    })
    const headers = { 'idempotency-key': 'slow' }
    const slow = await send('POST', '/outbox/events', { body: { type: 'slow', payload: 1 }, headers })
    expect(slow).toMatchObject({ status: 503, body: { code: 'QUERY_TIMEOUT' } })
    await db.query({ text: 'drop trigger sleep on leasehold.outbox' })
    errors.splice(0)
    expect((await send('GET', '/outbox/events')).body.items).toEqual([])
    const again = await send('POST', '/outbox/events', { body: { type: 'slow', payload: 1 }, headers })
    expect(again.status).toBe(201)
  })
})

describe('a database that is away', () => {
  let proxy: Proxy
  let own: Database
  let api: Api
  beforeAll(async () => {
    proxy = await startProxy(loginUrl)
    own = openDatabase({ url: proxy.url })
    api = createApi({ db: own, onError: (error) => void errors.push(error) })
  })
  afterAll(async () => {
    await api.stop()
    await own.close()
    await proxy.close()
  })
  const ask = async (path: string): Promise<Response> =>
    api.fetch(
      new Request(`http://localhost/api/v1${path}`, { headers: { authorization: `Bearer ${keys.admin}` } }),
    )

  it('is answered with 503 and Retry-After until it is back', async () => {
    // From the first request on: nothing is known of the database yet.
    await proxy.refuse()
    const first = await ask('/overview')
    expect(first.status).toBe(503)
    expect(Number(first.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
    await expect(first.json()).resolves.toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
    await proxy.accept()
    expect((await ask('/overview')).status).toBe(200)
    await proxy.refuse()
    proxy.cut()
    for (const path of ['/overview', '/outbox/events', '/session'])
      expect((await ask(path)).status, path).toBe(503)
    await proxy.accept()
    // A connection whose reset has not arrived yet may fail once more.
    await expect.poll(async () => (await ask('/overview')).status).toBe(200)
    expect(
      errors
        .splice(0)
        .every((error) => error instanceof Error && 'code' in error && error.code === 'DATABASE_UNAVAILABLE'),
    ).toBe(true)
    expect(proxy.connections).toBeLessThanOrEqual(10)
  })
})

describe('the role of the API', () => {
  it.each([
    'create table leasehold.mine ()',
    'create table public.mine ()',
    'create schema mine',
    'drop table leasehold.outbox',
    'truncate leasehold.outbox',
    'alter table leasehold.api_keys add column mine int',
    'create role mine',
    'grant leasehold_worker to current_user',
    'alter table leasehold.webhook_endpoints disable row level security',
    'drop policy webhook_endpoints_all on leasehold.webhook_endpoints',
    "alter role current_user set leasehold.tenant = ''",
    'create extension dblink',
    'delete from leasehold.audit',
    "update leasehold.audit set principal = 'somebody'",
    'delete from leasehold.api_keys',
  ])('cannot %s', async (statement) => {
    const login = await openSession(loginUrl)
    for (const role of ['api', 'reader', 'operator', 'producer', 'tenant']) {
      await login.query('begin')
      await login.query(`set local role leasehold_${role}`)
      await expect(login.query(statement), role).rejects.toMatchObject({
        code: expect.stringMatching(/^(42501|42704)$/),
      })
      await login.query('rollback')
    }
  })

  it('owns nothing, is no superuser, and bypasses no policy', async () => {
    const { rows } = await db.query({
      text: `select rolname from pg_roles
where pg_has_role($1, oid, 'member') and (rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication)
union all
select relname from pg_class where pg_has_role($1, relowner, 'member')`,
      values: [new URL(loginUrl).username],
    })
    expect(rows).toEqual([])
  })
})
