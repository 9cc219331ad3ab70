import { randomUUID } from 'node:crypto'
import { on } from 'node:events'
import { Client } from 'pg'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { listEvents } from '../admin/browse.ts'
import { enqueue } from './enqueue.ts'

/* How producers in other languages write events: the function, and a plain INSERT. */

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
let listening: Client

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox' })
  listening = new Client({ connectionString: url })
  await listening.connect()
  await listening.query('listen leasehold_wake')
})
afterEach(async () => listening.end())
afterAll(async () => db.close())

interface Row {
  readonly id: string
  readonly event_id: string
  readonly [column: string]: unknown
}

async function rows(): Promise<Row[]> {
  return (await db.query<Row>({ text: 'select * from leasehold.outbox order by id' })).rows
}

async function call(
  text: string,
  values: readonly unknown[] = [],
  tx: Queryable = db,
): Promise<string | undefined> {
  return (await tx.query<{ id: string }>({ text: `select leasehold.enqueue(${text}) as id`, values })).rows[0]
    ?.id
}

/** The notifications up to the mark that is sent now: they arrive in the order of commits. */
async function heardUntilNow(heard: AsyncIterator<{ payload?: string }[]>): Promise<(string | undefined)[]> {
  await db.query({ text: `select pg_notify('leasehold_wake', 'mark')` })
  const payloads: (string | undefined)[] = []
  for (;;) {
    const { value } = await heard.next()
    const [{ payload } = {}] = value as { payload?: string }[]
    if (payload === 'mark') return payloads
    payloads.push(payload)
  }
}

/** The three ways to write an event. */
const WAYS: readonly { readonly way: string; readonly write: (tx: Queryable) => Promise<unknown> }[] = [
  { way: 'leasehold.enqueue()', write: async (tx) => call(`'order.paid', '{"id": 1}'`, [], tx) },
  {
    way: 'a plain INSERT',
    write: async (tx) =>
      tx.query({
        text: `insert into leasehold.outbox (event_type, payload) values ('order.paid', '{"id": 1}')`,
      }),
  },
  { way: 'enqueue(tx, …)', write: async (tx) => enqueue(tx, { type: 'order.paid', payload: { id: 1 } }) },
]

describe.each(WAYS)('$way', ({ write }) => {
  it('LIFE-18: the event is visible, and relays are woken, when its transaction commits', async () => {
    const heard = on(listening, 'notification')
    await db.transaction(async (tx) => {
      await write(tx)
      expect(await heardUntilNow(heard)).toEqual([])
    })
    expect(await heardUntilNow(heard)).toEqual(['outbox'])
    expect(await rows()).toHaveLength(1)
  })

  it('LIFE-18: a transaction that is rolled back writes no event and wakes no relay', async () => {
    const heard = on(listening, 'notification')
    const reason = new Error('changed my mind')
    const outcome = db.transaction(async (tx) => {
      await write(tx)
      throw reason
    })
    await expect(outcome).rejects.toBe(reason)
    expect(await heardUntilNow(heard)).toEqual([])
    expect(await rows()).toEqual([])
  })

  it('LIFE-01: a new event is PENDING, available at once, and has 25 attempts', async () => {
    await write(db)
    const [row] = await rows()
    expect(row).toMatchObject({
      event_id: expect.stringMatching(/^[\da-f]{8}-[\da-f]{4}-7[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/),
      event_type: 'order.paid',
      ordering_key: null,
      payload: { id: 1 },
      headers: {},
      status: 'PENDING',
      attempts: 0,
      max_attempts: 25,
      expiries: 0,
      parked: false,
      bucket: 0,
      claimed_by: null,
      lock_token: '0',
      published_at: null,
      dead_at: null,
      last_error: null,
    })
    expect(row?.['available_at']).toEqual(row?.['created_at'])
  })
})

describe('leasehold.enqueue()', () => {
  it('takes every field of an event, and returns its id', async () => {
    const eventId = randomUUID()
    const id = await call('$1, $2, $3, $4, $5, $6', [
      'order.paid',
      '{"id": 1}',
      'o-1',
      '{"x-tenant": "t"}',
      '2031-02-03T04:05:06Z',
      eventId,
    ])
    expect(await rows()).toMatchObject([
      {
        id,
        event_id: eventId,
        ordering_key: 'o-1',
        headers: { 'x-tenant': 't' },
        available_at: new Date('2031-02-03T04:05:06Z'),
      },
    ])
  })

  it('takes named arguments', async () => {
    const id = await call(`event_type => 'a', payload => '1', event_id => $1`, [randomUUID()])
    expect(await rows()).toMatchObject([{ id, event_type: 'a', headers: {} }])
  })

  it('returns the id of the existing event when the event id was written before, and writes nothing', async () => {
    const eventId = randomUUID()
    const first = await call(`'a', '1', event_id => $1`, [eventId])
    const second = await call(`'b', '2', event_id => $1`, [eventId])
    const third = await enqueue(db, { type: 'c', payload: 3, eventId })
    expect(second).toBe(first)
    expect(third).toEqual({ id: first, eventId, duplicate: true })
    expect(await rows()).toMatchObject([{ event_type: 'a', payload: 1 }])
  })

  it('refuses a payload of more than 256 KiB, and names its size', async () => {
    const outcome = call(`'order.paid', to_jsonb(repeat('x', 262143))`)
    await expect(outcome).rejects.toMatchObject({
      code: '54000',
      message: 'the payload of a order.paid event has 262145 bytes, and at most 262144 are allowed',
      column: 'payload',
      hint: expect.stringContaining('Store large data elsewhere'),
    })
    expect(await call(`'order.paid', to_jsonb(repeat('x', 262142))`)).toMatch(/^\d+$/)
  })
})

describe('leasehold.enqueue() of an event outside the limits of the table', () => {
  it.each([
    ["'', '1'", 'event_type'],
    ["'a', '1', ''", 'ordering_key'],
    ["'a', '1', repeat('k', 1025)", 'ordering_key'],
    ["'a', '1', null, jsonb_build_object('h', repeat('x', 16384))", 'headers'],
    ["'a', '1', null, '{}', 'infinity'", 'available_at'],
  ])('LIFE-18: enqueue(%s) is refused by the same trigger as a plain INSERT', async (text, column) => {
    await expect(call(text)).rejects.toMatchObject({ table: 'outbox', column })
    expect(await rows()).toEqual([])
  })

  it.each(["null, '1'", "'a', null"])('LIFE-18: enqueue(%s) is refused', async (text) => {
    await expect(call(text)).rejects.toMatchObject({ code: '23502' })
  })
})

describe('a plain INSERT', () => {
  it('is idempotent with ON CONFLICT DO NOTHING', async () => {
    const insert = (conflict: string) => ({
      text: `insert into leasehold.outbox (event_type, payload, event_id) values ('a', '1', $1) ${conflict}`,
      values: [eventId],
    })
    const eventId = randomUUID()
    await db.query(insert('on conflict do nothing'))
    await db.query(insert('on conflict do nothing'))
    expect(await rows()).toHaveLength(1)
    await expect(db.query(insert(''))).rejects.toMatchObject({ code: '23505', constraint: 'outbox_event_id' })
  })

  it('gets an event id of version 7 that ends with the number of the event', async () => {
    await db.query({
      text: `insert into leasehold.outbox (event_type, payload) select 'a', '1' from generate_series(1, 20)`,
    })
    const written = await rows()
    expect(written).toHaveLength(20)
    for (const { id, event_id } of written)
      expect(event_id).toMatch(
        new RegExp(`^.{8}-.{4}-7.{3}-[89ab].{3}-${Number(id).toString(16).padStart(12, '0')}$`),
      )
    expect(new Set(written.map(({ event_id }) => event_id.slice(0, 23))).size).toBe(20)
  })

  it('is found by its event id, given or generated', async () => {
    await enqueue(db, [
      { type: 'a', payload: 1 },
      { type: 'a', payload: 1, eventId: randomUUID() },
    ])
    const written = await rows()
    const find = async (eventId: string) =>
      (
        await db.query<{ id: string | null }>({
          text: 'select leasehold.find_event($1) as id',
          values: [eventId],
        })
      ).rows[0]?.id
    for (const { id, event_id } of written) expect(await find(event_id)).toBe(id)
    const [first] = written
    // The same number, and another random part.
    expect(await find(`0197a1c2-7d00-7000-8000-${first?.event_id.slice(24)}`)).toBeNull()
  })

  it('a given event id that ends with the number of its event is unique, too', async () => {
    const eventId = '0197a1c2-7d00-7000-8000-000000000fff'
    const text = `insert into leasehold.outbox (id, event_type, payload, event_id) values ($1, 'a', '1', $2)`
    await db.query({ text, values: [0xfff, eventId] })
    await expect(db.query({ text, values: [0x1000, eventId] })).rejects.toMatchObject({
      constraint: 'outbox_event_id',
    })
    expect(await enqueue(db, { type: 'a', payload: 1, eventId })).toMatchObject({
      id: '4095',
      duplicate: true,
    })
    expect(await rows()).toHaveLength(1)
  })

  it('two transactions at once write one event of a given id that ends with the number of its event', async () => {
    await db.query({ text: 'alter table leasehold.outbox alter id restart with 700000' })
    const eventId = `0197a1c2-7d00-7000-8000-${(700_000).toString(16).padStart(12, '0')}`
    await db.transaction(async (first) => {
      expect(await enqueue(first, { type: 'a', payload: 1, eventId })).toMatchObject({ duplicate: false })
      const second = enqueue(db, { type: 'a', payload: 1, eventId })
      await expect
        .poll(async () => {
          const text =
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
          return (await db.query({ text })).rowCount
        })
        .toBe(1)
      await first.query({ text: 'commit' })
      expect(await second).toMatchObject({ id: '700000', duplicate: true })
      await first.query({ text: 'begin' })
    })
    expect(await rows()).toHaveLength(1)
  })

  it('beyond 2^48 events, each is found by its event id, and written once', async () => {
    const beyond = 2n ** 48n + 7n
    await db.query({
      text: `insert into leasehold.outbox (id, event_type, payload) values ($1, 'a', '1'), (7, 'a', '1')`,
      values: [beyond],
    })
    for (const { id, event_id: eventId } of await rows()) {
      expect(eventId).toMatch(/000000000007$/)
      const { rows: found } = await db.query({
        text: 'select leasehold.find_event($1) as id',
        values: [eventId],
      })
      expect(found).toEqual([{ id }])
      expect(await enqueue(db, { type: 'a', payload: 1, eventId })).toMatchObject({ id, duplicate: true })
      const listed = await listEvents(db, { ids: [eventId] })
      expect(listed.events.map((event) => event.id)).toEqual([id])
    }
    expect(await rows()).toHaveLength(2)
  })
})

it('SET leasehold.notify = off turns wake-ups off', async () => {
  const heard = on(listening, 'notification')
  await db.transaction(async (tx) => {
    await tx.query({ text: `set local leasehold.notify = 'off'` })
    await enqueue(tx, { type: 'a', payload: 1 })
  })
  expect(await heardUntilNow(heard)).toEqual([])
})
