import { randomUUID } from 'node:crypto'
import { on } from 'node:events'
import { Client } from 'pg'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { enqueue } from './outbox.ts'

/* What producers in other languages do: the function, and a plain INSERT. */

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

/** What was heard up to the mark that is sent now: notifications keep the order of commits. */
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

/** The three ways to write an event, each with what is the same for all. */
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
  it('LIFE-18: an event is there once its transaction has committed, and relays are woken then', async () => {
    const heard = on(listening, 'notification')
    await db.transaction(async (tx) => {
      await write(tx)
      expect(await heardUntilNow(heard)).toEqual([])
    })
    expect(await heardUntilNow(heard)).toEqual(['outbox'])
    expect(await rows()).toHaveLength(1)
  })

  it('LIFE-18: a producer that rolls back leaks neither the event nor the wake-up', async () => {
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

  it('LIFE-01: an event begins as PENDING, available at once, with the usual 25 attempts', async () => {
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
      behind: false,
      parked: false,
      bucket: 0,
      lock_token: '0',
      published_at: null,
      last_error: null,
    })
    expect(row?.['available_at']).toEqual(row?.['created_at'])
  })
})

describe('leasehold.enqueue()', () => {
  it('takes all that an event can have, and returns its id', async () => {
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

  it('takes them by name', async () => {
    const id = await call(`event_type => 'a', payload => '1', event_id => $1`, [randomUUID()])
    expect(await rows()).toMatchObject([{ id, event_type: 'a', headers: {} }])
  })

  it('an event id that was written before is the same event', async () => {
    const eventId = randomUUID()
    const first = await call(`'a', '1', event_id => $1`, [eventId])
    const second = await call(`'b', '2', event_id => $1`, [eventId])
    const third = await enqueue(db, { type: 'c', payload: 3, eventId })
    expect(second).toBe(first)
    expect(third).toEqual({ id: first, eventId, written: false })
    expect(await rows()).toMatchObject([{ event_type: 'a', payload: 1 }])
  })

  it('refuses a payload of more than 256 KiB, and says how large it is', async () => {
    const outcome = call(`'order.paid', to_jsonb(repeat('x', 262143))`)
    await expect(outcome).rejects.toMatchObject({
      code: '54000',
      message: 'the payload of a order.paid event has 262145 bytes, and at most 262144 are allowed',
      hint: expect.stringContaining('Store what is large elsewhere'),
    })
    expect(await call(`'order.paid', to_jsonb(repeat('x', 262142))`)).toMatch(/^\d+$/)
  })
})

describe('a plain INSERT', () => {
  it('says on conflict do nothing for what may have been written before', async () => {
    const insert = {
      text: `insert into leasehold.outbox (event_type, payload, event_id) values ('a', '1', $1)
        on conflict (bucket, event_id) do nothing`,
      values: [randomUUID()],
    }
    await db.query(insert)
    await db.query(insert)
    expect(await rows()).toHaveLength(1)
    const twice = db.query({ ...insert, text: insert.text.replace(/on conflict.*/s, '') })
    await expect(twice).rejects.toMatchObject({ code: '23505', constraint: 'outbox_event_id_unique' })
  })

  it('LIFE-02: cannot begin an event as anything but PENDING', async () => {
    const outcome = db.query({
      text: `insert into leasehold.outbox (event_type, payload, status, published_at, available_at)
        values ('a', '1', 'PUBLISHED', now(), null)`,
    })
    await expect(outcome).rejects.toMatchObject({
      code: '23514',
      message: expect.stringContaining('begins as PENDING'),
    })
  })
})

it('wake-ups can be turned off by those who poll', async () => {
  const heard = on(listening, 'notification')
  await db.transaction(async (tx) => {
    await tx.query({ text: `set local leasehold.notify = 'off'` })
    await enqueue(tx, { type: 'a', payload: 1 })
  })
  expect(await heardUntilNow(heard)).toEqual([])
})
