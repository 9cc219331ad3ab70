import type { StandardSchemaV1 } from '@standard-schema/spec'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { z } from 'zod'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase } from '../../postgres/database.ts'
import { migrate } from '../../postgres/migrate.ts'
import type { NewEvent } from '../event.ts'
import { createOutbox, enqueue, type OutboxOptions } from './enqueue.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox' })
})
afterAll(async () => db.close())

async function payloads(): Promise<unknown[]> {
  const { rows } = await db.query<{ payload: unknown }>({
    text: 'select payload from leasehold.outbox order by id',
  })
  return rows.map(({ payload }) => payload)
}

async function only(schema = 'leasehold'): Promise<object | undefined> {
  return (await db.query({ text: `select * from ${schema}.outbox` })).rows[0]
}

it('an event with only a type and a payload gets the defaults', async () => {
  const before = Date.now()
  const { id, eventId } = await enqueue(db, { type: 'order.paid', payload: { id: 'o-1' } })
  const row = await only()
  expect(row).toMatchObject({
    id,
    event_id: eventId,
    bucket: 0,
    expiries: 0,
    parked: false,
    event_type: 'order.paid',
    ordering_key: null,
    payload: { id: 'o-1' },
    headers: {},
    status: 'PENDING',
    attempts: 0,
    max_attempts: 25,
    lock_token: '0',
    claimed_by: null,
    available_at: expect.any(Date),
  })
  expect(row).toHaveProperty('available_at', row === undefined ? undefined : Reflect.get(row, 'created_at'))
  expect(Number(Reflect.get(row ?? {}, 'created_at'))).toBeGreaterThan(before - 60_000)
})

describe('maxAttempts', () => {
  it.each([
    ['of the outbox', { maxAttempts: 3 }, {}, 3],
    ['of the event, before that of the outbox', { maxAttempts: 3 }, { maxAttempts: 4 }, 4],
    ['null in the outbox: no end', { maxAttempts: null }, {}, null],
    ['null in the event: no end', {}, { maxAttempts: null }, null],
  ])('%s', async (_, options: OutboxOptions, event: Partial<NewEvent>, expected) => {
    await createOutbox(options).enqueue(db, { type: 'a', payload: 1, ...event })
    expect(await only()).toMatchObject({ max_attempts: expected })
  })
})

it('an outbox writes to the given schema', async () => {
  await migrate(db, { schema: 'other "place"' })
  await createOutbox({ schema: 'other "place"' }).enqueue(db, [
    { type: 'a', payload: 1, orderingKey: 'k' },
    { type: 'b', payload: 1, orderingKey: 'k' },
  ])
  expect(await only('"other ""place"""')).toMatchObject({ event_type: 'a' })
  expect(await payloads()).toEqual([])
})

it.each([
  [{ maxPayloadBytes: 0 }, /maxPayloadBytes is 0/],
  [{ maxPayloadBytes: 262_145 }, /maxPayloadBytes is 262145, but must be a whole number from 1 to 262144/],
  [{ maxPayloadBytes: Number.NaN }, /maxPayloadBytes is NaN/],
  [{ maxAttempts: Number.NaN }, /maxAttempts is NaN/],
  [{ schema: '' }, /schema is ''/],
  [{ events: { 'order.paid': { parse: () => 1 } } }, /events\["order\.paid"\] is no Standard Schema/],
])('the options %j are refused', (options, message) => {
  // What the compiler refuses, as JavaScript would pass it.
  expect(() => createOutbox(options as unknown as OutboxOptions)).toThrow(message)
})

describe('schemas', () => {
  const outbox = createOutbox({
    events: {
      'order.paid': z.object({
        id: z.string(),
        lines: z.array(z.object({ 'unit price': z.number() })).default([]),
      }),
      'order.lost': z.object({ id: z.string() }),
    },
  })

  it('accept a payload, and what they return is written', async () => {
    const payload = { id: 'o-1', unheard: 'of' }
    await outbox.enqueue(db, { type: 'order.paid', payload })
    expect(await payloads()).toEqual([{ id: 'o-1', lines: [] }])
  })

  it('refuse with all problems of all events, by path, and nothing is written', async () => {
    const outcome = outbox.enqueue(db, [
      { type: 'order.lost', payload: { id: 'fine' } },
      // @ts-expect-error -- what the schema refuses does not compile either
      { type: 'order.paid', payload: { id: 7, lines: [{ 'unit price': 1 }, { 'unit price': 'much' }] } },
      // @ts-expect-error -- nor this
      { type: 'order.lost', payload: {} },
    ])
    await expect(outcome).rejects.toMatchObject({ code: 'EVENT_INVALID' })
    await expect(outcome).rejects.toThrow(
      /events\[1\]\.payload\.id: .*; events\[1\]\.payload\.lines\[1\]\["unit price"\]: .*; events\[2\]\.payload\.id: /,
    )
    expect(await payloads()).toEqual([])
  })

  it('a type without a schema is refused, and the error lists the types', async () => {
    // @ts-expect-error -- a type that is misspelt
    const outcome = outbox.enqueue(db, { type: 'order.payed', payload: { id: 'o-1' } })
    await expect(outcome).rejects.toThrow(
      /event\.type is 'order\.payed', but the types.*order\.paid, order\.lost/,
    )
    // @ts-expect-error -- a name that every object has
    await expect(outbox.enqueue(db, { type: 'toString', payload: 1 })).rejects.toThrow(
      /the types of this outbox/,
    )
  })

  it('may be asynchronous and come from any library', async () => {
    const even: StandardSchemaV1<number, string> = {
      '~standard': {
        version: 1,
        vendor: 'this test',
        async validate(value) {
          await Promise.resolve()
          return Number(value) % 2 === 0
            ? { value: `even ${String(value)}` }
            : { issues: [{ message: 'is odd' }, { message: 'at that place', path: ['a', { key: 0 }] }] }
        },
      },
    }
    const evens = createOutbox({ events: { number: even } })
    await evens.enqueue(db, { type: 'number', payload: 4 })
    expect(await payloads()).toEqual(['even 4'])
    await expect(evens.enqueue(db, { type: 'number', payload: 3 })).rejects.toThrow(
      /event\.payload: is odd; event\.payload\.a\[0\]: at that place\./,
    )
  })

  it('that throw are reported with their own error', async () => {
    const down = new Error('the lookup failed')
    const failing: StandardSchemaV1 = {
      '~standard': { version: 1, vendor: 'this test', validate: async () => Promise.reject(down) },
    }
    const outbox = createOutbox({ events: { a: failing } })
    await expect(outbox.enqueue(db, { type: 'a', payload: 'x' })).rejects.toBe(down)
    expect(await payloads()).toEqual([])
  })
})

interface Events {
  'order.paid': { id: string; total?: number }
  'order.lost': { id: string; why: string }
}

it('one event is answered with one result, an array with as many as it has events', async () => {
  const outbox = createOutbox<Events>()
  const one = await outbox.enqueue(db, { type: 'order.paid', payload: { id: 'o-1' } })
  const [first, second] = await outbox.enqueue(db, [
    { type: 'order.paid', payload: { id: 'o-2', total: 1 } },
    { type: 'order.lost', payload: { id: 'o-2', why: 'unknown' } },
  ])
  expect([one.duplicate, first?.duplicate, second?.duplicate]).toEqual([false, false, false])
})

/** Never run: these are here to be compiled. */
export function compiles(): void {
  const outbox = createOutbox<Events>()
  // @ts-expect-error -- a type that is not in the map
  void outbox.enqueue(db, { type: 'order.payed', payload: { id: 'o-1' } })
  // @ts-expect-error -- a payload of the wrong kind
  void outbox.enqueue(db, { type: 'order.paid', payload: { id: 1 } })
  // @ts-expect-error -- the payload of another type
  void outbox.enqueue(db, { type: 'order.lost', payload: { id: 'o-1' } })
  // @ts-expect-error -- a payload that is missing
  void outbox.enqueue(db, [{ type: 'order.paid' }])
  // @ts-expect-error -- a header that is no text
  void outbox.enqueue(db, { type: 'order.paid', payload: { id: 'o-1' }, headers: { n: 1 } })
  // @ts-expect-error -- a field that is misspelt
  void outbox.enqueue(db, { type: 'order.paid', payload: { id: 'o-1' }, ordering_key: 'o-1' })
  // @ts-expect-error -- types and schemas that contradict each other
  createOutbox<Events>({ events: { 'order.paid': z.object({ id: z.number() }), 'order.lost': z.object({}) } })
  // @ts-expect-error -- a type whose schema is missing
  createOutbox<Events>({ events: { 'order.paid': z.object({ id: z.string() }) } })
}
