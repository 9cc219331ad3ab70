import { drizzle } from 'drizzle-orm/node-postgres'
import knexOf from 'knex'
import { Kysely, PostgresDialect } from 'kysely'
import { dead, Events, openDatabase, retry, startRuntime } from 'leasehold'
import { relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'
import { Pool } from 'pg'
import postgres from 'postgres'
import { afterAll, beforeEach, expect, it } from 'vitest'
import { goOnWithout, publishNow, replayTimeouts } from '../examples/operate.ts'
import { runShop } from '../examples/outbox.ts'
import { gatewayPublisher } from '../examples/publisher.ts'
import { type PrismaLike, writeChecked, writeMany, writeWithEach } from '../examples/writers.ts'
import { loadSettings } from '../src/config/load.ts'
import { useDatabase } from './support/database.ts'
import { marked, projectFile, snippets } from './support/project-files.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' })
})

interface Row {
  readonly event_type: string
  readonly ordering_key: string | null
  readonly status: string
  readonly attempts: number
  readonly last_error: string | null
}

async function rows(): Promise<Row[]> {
  const text =
    'select event_type, ordering_key, status, attempts, last_error from leasehold.outbox order by id'
  return (await db.query<Row>({ text })).rows
}

it('the code in the outbox guide is identical to that of the examples', async () => {
  const files = ['orders', 'writers', 'publisher', 'outbox', 'operate'].map((name) => `examples/${name}.ts`)
  const regions = (await Promise.all(files.map(marked))).flat()
  expect(regions).toHaveLength(9)
  expect((await snippets('docs/guides/outbox.md', 'ts')).toSorted()).toEqual(regions.toSorted())
  expect(await snippets('docs/guides/outbox.md', 'sql')).toEqual([
    (await projectFile('examples/enqueue.sql')).trim(),
  ])
})

it('the shop example writes order and event atomically, keeps the order, retries, and books each payment once', async () => {
  const { arrivals, booked } = await runShop(url)
  expect(arrivals).toHaveLength(8)
  expect(booked).toBe(300)
  expect((await rows()).map(({ status }) => status)).toEqual(Array.from({ length: 6 }, () => 'PUBLISHED'))
})

it('the shop example does not touch events of other types', async () => {
  await db.query({ text: "insert into leasehold.outbox (event_type, payload) values ('yours', '{}')" })
  await expect(runShop(url)).rejects.toThrow('a database of its own')
  expect(await rows()).toMatchObject([{ event_type: 'yours', status: 'PENDING' }])
})

it('every database library in the guide enqueues its event', async () => {
  const pool = new Pool({ connectionString: url, max: 4 })
  const sql = postgres(url, { max: 1 })
  const kysely = new Kysely<object>({
    dialect: new PostgresDialect({ pool: new Pool({ connectionString: url, max: 1 }) }),
  })
  const knex = knexOf({ client: 'pg', connection: url, pool: { min: 0, max: 1 } })
  // Not Prisma's engine, only its shape.
  const prisma: PrismaLike = {
    $transaction: async (work) =>
      work({
        $queryRawUnsafe: async (text, ...values) => (await pool.query(text, values)).rows as unknown[],
      }),
  }
  await writeWithEach(
    { db, sql, kysely, drizzle: drizzle(pool), knex, prisma },
    { type: 'order.paid', payload: {} },
  )
  await Promise.all([pool.end(), sql.end(), kysely.destroy(), knex.destroy()])
  expect(await rows()).toHaveLength(6)
})

it('a schema refuses an invalid event, and many events are enqueued with one statement', async () => {
  const order = '0197a1c2-7d00-7000-8000-000000000001'
  expect(await writeChecked(db, order, 5)).toMatchObject({ id: '1', duplicate: false })
  await expect(writeChecked(db, 'seven', 5)).rejects.toMatchObject({ code: 'EVENT_INVALID' })
  expect(await writeMany(db, [order, order])).toMatchObject([{ duplicate: false }, { duplicate: false }])
})

it('the SQL in the guide enqueues its events', async () => {
  await db.query({ text: await projectFile('examples/enqueue.sql') })
  const types = (await rows()).map(({ event_type: type, ordering_key: key }) => [type, key])
  expect(types).toEqual([
    ['order.paid', null],
    ['order.shipped', 'order-7'],
    ['order.closed', 'order-1'],
    ['order.closed', 'order-2'],
    ['order.closed', 'order-3'],
  ])
})

it('a custom publisher returns an outcome for each event', async () => {
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload)
      select 'n', jsonb_build_object('status', status) from unnest(array[202, 429, 503, 400]) as status`,
  })
  let turned = 0
  const gateway = {
    ping: async () => undefined,
    send: async (messages: readonly object[]) =>
      messages.map((message) => {
        const { status } = (message as { body: { status: number } }).body
        if (status !== 429 && status !== 503) return { status }
        // The second time there is room.
        turned += 1
        return turned <= 2 ? { status, waitMs: 1 } : { status: 202 }
      }),
  }
  const events = new Events()
  let finished = 0
  const all = events.next('settled', ({ outcome, ids }) => {
    if (outcome !== 'retry') finished += ids.length
    return finished === 4
  })
  const runtime = await startRuntime({
    databaseUrl: url,
    migrate: true,
    log: false,
    events,
    workers: [relay({ publisher: gatewayPublisher(gateway) })],
  })
  await all
  await runtime.stop()
  const found = (await rows()).map(({ status, attempts, last_error: error }) => [status, attempts, error])
  expect(found).toEqual([
    ['PUBLISHED', 0, null],
    ['PUBLISHED', 1, 'too many for this receiver'],
    ['PUBLISHED', 0, null],
    ['DEAD', 1, 'the gateway refused it with 400'],
  ])
})

it('the operator example counts, replays and unblocks events', async () => {
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload, ordering_key)
      values ('order.paid', '{}', null), ('order.paid', '{}', 'order-7'), ('order.shipped', '{}', 'order-7')`,
  })
  const events = new Events()
  const died = events.next('settled', ({ outcome, ids }) => outcome === 'dead' && ids.includes('2'))
  const bothFailed = Promise.all([
    died,
    events.next('settled', ({ outcome, ids }) => outcome === 'dead' && ids.includes('1')),
  ])
  const publisher = handlers({
    'order.paid': ({ orderingKey }) =>
      orderingKey === undefined ? dead('timeout') : retry({ error: 'the ledger refuses it' }),
    'order.shipped': () => {},
  })
  const runtime = await startRuntime({
    databaseUrl: url,
    migrate: true,
    log: false,
    events,
    workers: [relay({ publisher, onFailure: 'park' })],
  })
  await bothFailed
  const shipped = events.next('settled', ({ outcome, ids }) => outcome === 'done' && ids.includes('3'))
  expect(await goOnWithout(db, 'order-7', 'ada')).toBe(1)
  await shipped
  await runtime.stop()
  expect(await replayTimeouts(db, 'ada')).toMatchObject({ matched: 1, done: { changed: 1, finished: true } })
  expect((await rows()).map(({ status }) => status)).toEqual(['PENDING', 'DEAD', 'PUBLISHED'])
})

it('the operator example makes an event due that waits for its retry', async () => {
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload, available_at)
      values ('order.paid', '{}', now() + interval '1 hour')`,
  })
  expect(await publishNow(db, '1', 'ada')).toBe(1)
})

it('the configuration in the README declares a valid relay without opening a connection', async () => {
  const directory = new URL('../examples/nats', import.meta.url).pathname
  const { settings } = await loadSettings({
    flags: {},
    environment: {},
    workingDirectory: directory,
    terminal: false,
  })
  expect(settings.workers.map(({ name }) => name)).toEqual(['outbox'])
})
