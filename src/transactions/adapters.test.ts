import { Client, Pool } from 'pg'
import { DataSource, EntitySchema } from 'typeorm'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openProducers } from '../../test/support/outbox-producers.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase } from '../postgres/database.ts'
import type { NewEvent } from '../outbox/event.ts'
import { enqueue } from '../outbox/enqueue/enqueue.ts'
import { transactionOf, writerOf } from './adapters.ts'
import type { Writer } from './writer.ts'

useQuietProcess()
/** An entity, for a repository. */
const NOTHING = new EntitySchema<{ id: string }>({
  name: 'nothing',
  columns: { id: { type: String, primary: true } },
})
const { url } = useDatabase()
const producers = openProducers(url)
const db = openDatabase({ url })

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox' })
})
afterAll(async () => {
  await Promise.all([db.close(), ...producers.map(async (producer) => producer.close())])
})

/** Full of what a driver could trip over: its own placeholders, quotes, other alphabets, JSON in JSON. */
const AWKWARD: NewEvent = {
  type: `it's "paid" ? $1 :name`,
  payload: {
    text: `a ? b ?? \\? $1 $2 :x 'quoted' "twice" \\ back\nline 漢字 🎉`,
    number: 12_345_678_901.25,
    none: null,
    list: [1, 'two', { three: [true, false] }],
    json: '{"not": "parsed"}',
  },
  orderingKey: `key ? $1 '"`,
  headers: { 'x-one': 'a ? $1', 'x-two': '漢' },
  availableAt: new Date('2031-02-03T04:05:06.789Z'),
  eventId: '01890000-0000-7000-8000-00000000000a',
  maxAttempts: null,
}

async function rows(): Promise<object[]> {
  const text = `select event_id, event_type, ordering_key, payload, headers, available_at, max_attempts, status
    from leasehold.outbox order by id`
  return (await db.query({ text })).rows
}

const AS_WRITTEN = {
  event_id: AWKWARD.eventId,
  event_type: AWKWARD.type,
  ordering_key: AWKWARD.orderingKey,
  payload: AWKWARD.payload,
  headers: AWKWARD.headers,
  available_at: AWKWARD.availableAt,
  max_attempts: null,
  status: 'PENDING',
}

describe.each(producers)('$name', ({ transaction, root }) => {
  it('LIFE-18: an event exists once its transaction has committed, exactly as it was given', async () => {
    await transaction(async (tx) => {
      const enqueued = await enqueue(tx, AWKWARD)
      expect(enqueued).toEqual({
        id: expect.stringMatching(/^\d+$/),
        eventId: AWKWARD.eventId,
        duplicate: false,
      })
      expect(await rows()).toEqual([])
    })
    expect(await rows()).toEqual([AS_WRITTEN])
  })

  it('LIFE-18: an event of a transaction that rolled back does not exist', async () => {
    const reason = new Error('changed my mind')
    const outcome = transaction(async (tx) => {
      await enqueue(tx, [AWKWARD, { type: 'second', payload: 2 }])
      throw reason
    })
    await expect(outcome).rejects.toBe(reason)
    expect(await rows()).toEqual([])
  })

  it('writes many events, and finds those that exist already', async () => {
    await transaction(async (tx) => {
      const first = await enqueue(tx, [AWKWARD, { type: 'second', payload: 'a text' }])
      const again = await enqueue(tx, [{ type: 'third', payload: 3 }, AWKWARD])
      expect(first.map(({ duplicate }) => duplicate)).toEqual([false, false])
      expect(again.map(({ duplicate }) => duplicate)).toEqual([false, true])
      expect(again[1]?.id).toBe(first[0]?.id)
    })
    expect(await rows()).toMatchObject([AS_WRITTEN, { payload: 'a text' }, { payload: 3 }])
  })

  it('outside a transaction a call is a transaction of its own', async () => {
    await enqueue(root, AWKWARD)
    expect(await rows()).toEqual([AS_WRITTEN])
  })

  it('detects whether it is in a transaction', async () => {
    await transaction(async (tx) => {
      expect(await writerOf(tx).inTransaction()).not.toBe(false)
    })
    expect(await writerOf(root).inTransaction()).toBe(false)
  })
})

it('a pg client in a transaction is detected even if its BEGIN was not awaited', async () => {
  const client = new Client({ connectionString: url })
  await client.connect()
  expect(await writerOf(client).inTransaction()).toBe(false)
  const begun = client.query('begin')
  expect(await writerOf(client).inTransaction()).toBe(true)
  await begun
  await client.query('rollback')
  expect(await writerOf(client).inTransaction()).toBe(false)
  await client.end()
})

it.each([
  ['nothing', undefined, /with a value of type undefined/],
  ['a text', 'postgresql://localhost', /with a value of type string/],
  ['an object without methods', { host: 'localhost' }, /an object with host/],
  ['an object of another kind', new Map(), /an object of class Map/],
  ['a function', async () => undefined, /with the function \(without a name\)/],
])('%s is refused, with a list of what is accepted', async (_, wrong, message) => {
  // What the compiler refuses, as JavaScript would pass it.
  const outcome = enqueue(wrong as unknown as Writer, { type: 'a', payload: 1 })
  await expect(outcome).rejects.toMatchObject({
    code: 'WRITER_INVALID',
    message: expect.stringMatching(message),
  })
  await expect(outcome).rejects.toThrow(
    /pg Client.*postgres\.js.*Kysely, Drizzle, Prisma, Knex or TypeORM.*query\(text, values\)/,
  )
})

it('a query() that does not return its rows is an error that says so', async () => {
  const silent = { query: async (_text: string, _values: unknown[]) => [] }
  await expect(enqueue(silent, { type: 'a', payload: 1 })).rejects.toMatchObject({
    code: 'WRITER_INVALID',
    message: expect.stringMatching(/neither written nor found.*resolve to the rows/),
  })
})

it('a driver with query() and an unsafe() of another meaning is used through query()', async () => {
  const neon = Object.assign(() => undefined, {
    unsafe: (text: string, _values: string[]) => Promise.resolve([text]),
    query: async (text: string, values: unknown[]) => (await db.query({ text, values })).rows,
  })
  expect(await enqueue(neon, AWKWARD)).toMatchObject({ duplicate: false })
})

it('the SQL error of a driver is passed on unchanged', async () => {
  const pool = new Pool({ connectionString: url })
  const outcome = pool
    .query('begin; truncate leasehold.inbox; rollback')
    .then(async () => enqueue({ query: async () => pool.query('select 1/0') }, { type: 'a', payload: 1 }))
  await expect(outcome).rejects.toMatchObject({ code: '22012' })
  await pool.end()
})

it('a repository of TypeORM is in the transaction of its manager, and its UPDATE answers with rows', async () => {
  const dataSource = await new DataSource({ type: 'postgres', url, entities: [NOTHING] }).initialize()
  const before = await enqueue(dataSource.getRepository(NOTHING), { type: 'a', payload: 1 })
  await dataSource.transaction(async (manager) => {
    const repository = manager.getRepository(NOTHING)
    expect(await writerOf(repository).inTransaction()).toBe(true)
    const text =
      'update leasehold.outbox set payload = $2::jsonb where id = $1::bigint returning event_type as type'
    expect(await writerOf(repository).query(text, [before.id, '2'])).toEqual({ rows: [{ type: 'a' }] })
  })
  await dataSource.destroy()
})

it('a QueryRunner of TypeORM is in a transaction only after one was begun, by its method or by hand', async () => {
  const dataSource = await new DataSource({ type: 'postgres', url, entities: [NOTHING] }).initialize()
  const runner = dataSource.createQueryRunner()
  const refused = { code: 'WRITER_INVALID', message: expect.stringMatching(/not in a transaction/) }
  // It has no connection yet.
  await expect(transactionOf(runner, 'once()')).rejects.toMatchObject(refused)
  await runner.connect()
  await expect(transactionOf(runner, 'once()')).rejects.toMatchObject(refused)
  await expect(transactionOf(runner.manager, 'once()')).rejects.toMatchObject(refused)
  await runner.query('begin')
  expect(await writerOf(runner).inTransaction()).toBe(true)
  expect(await writerOf(runner.manager.getRepository(NOTHING)).inTransaction()).toBe(true)
  await runner.query('rollback')
  await runner.startTransaction()
  expect(await writerOf(runner).inTransaction()).toBe(true)
  await runner.commitTransaction()
  await expect(transactionOf(runner, 'once()')).rejects.toMatchObject(refused)
  await runner.release()
  await dataSource.destroy()
})

/** Never run: these are here to be compiled. */
export function compiles(pool: Pool): void {
  // @ts-expect-error -- a URL is no writer
  void enqueue('postgresql://localhost', { type: 'a', payload: 1 })
  // @ts-expect-error -- an object without any of the methods is none
  void enqueue({ host: 'localhost' }, { type: 'a', payload: 1 })
  // @ts-expect-error -- nor is a query() that answers with nothing
  void enqueue({ query: async () => undefined }, { type: 'a', payload: 1 })
  // @ts-expect-error -- nor the promise of a client
  void enqueue(pool.connect(), { type: 'a', payload: 1 })
  // @ts-expect-error -- the event comes second
  void enqueue({ type: 'a', payload: 1 }, pool)
}
