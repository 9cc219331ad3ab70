import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { NewEvent } from '../event.ts'
import { createOutbox, enqueue } from './enqueue.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

async function count(): Promise<number> {
  const { rows } = await db.query<{ n: number }>({ text: 'select count(*)::int as n from leasehold.outbox' })
  return rows[0]?.n ?? Number.NaN
}

/** As JavaScript would pass it: much of this does not compile. */
function wrong(event: unknown): NewEvent {
  return event as NewEvent
}

/** Enqueues in a transaction that goes on and commits: what was refused must have changed nothing. */
async function refusal(event: unknown): Promise<unknown> {
  return db.transaction(async (tx) =>
    enqueue(tx, wrong(event)).then(
      () => 'was written',
      (error: unknown) => error,
    ),
  )
}

/** Lists inside each other: this many, around a number. */
function nested(levels: number): unknown {
  let value: unknown = 1
  for (let level = 0; level < levels; level += 1) value = [value]
  return value
}

const circular: Record<string, unknown> = { name: 'round' }
circular['self'] = { again: circular }

describe('refused, with the field named and nothing written', () => {
  const ok = { type: 'order.paid', payload: { id: 1 } }
  it.each([
    ['no event', 5, /event is 5, but must be an object such as/],
    ['null', null, /event is null/],
    ['no type', { payload: 1 }, /event\.type is undefined, but must be the name/],
    ['an empty type', { ...ok, type: '' }, /event\.type is ''/],
    [
      'a type with \\u0000',
      { ...ok, type: 'a\0b' },
      /event\.type contains the character \\u0000, .*: remove it \(it is 'a\\x00b'\)/,
    ],
    [
      'a type with half a character',
      { ...ok, type: 'a\ud800' },
      /event\.type contains half a surrogate pair, .* \(it is 'a\\ud800'\)/,
    ],
    ['an empty ordering key', { ...ok, orderingKey: '' }, /event\.orderingKey is ''/],
    ['a number as ordering key', { ...ok, orderingKey: 7 }, /event\.orderingKey is 7/],
    [
      'an ordering key that no index takes',
      { ...ok, orderingKey: 'é'.repeat(513) },
      /event\.orderingKey is 'é{40}'\.\.\. 473 more characters and has 1026 bytes.*at most 1024: give an id/,
    ],
    [
      'an ordering key with \\u0000',
      { ...ok, orderingKey: 'a\0b' },
      /event\.orderingKey contains the character \\u0000, .*: remove it \(it is 'a\\x00b'\)/,
    ],
    [
      'an ordering key with half a character',
      { ...ok, orderingKey: 'a\ud800' },
      /event\.orderingKey contains half a surrogate pair, .* \(it is 'a\\ud800'\)/,
    ],
    [
      'a type that is too long',
      { ...ok, type: 'x'.repeat(256) },
      /event\.type is 'x{40}'\.\.\. 216 more characters and has 256 bytes.*at most 255 .*: give a name/,
    ],
    ['no uuid', { ...ok, eventId: 'order-1' }, /event\.eventId is 'order-1', but must be a uuid/],
    ['nearly a uuid', { ...ok, eventId: '01890000-0000-7000-8000-00000000000g' }, /event\.eventId is/],
    ['no payload', { type: 'a' }, /event\.payload is undefined, which is not JSON/],
    ['a function as payload', { ...ok, payload: () => 1 }, /event\.payload is a function/],
    ['a symbol as payload', { ...ok, payload: Symbol('s') }, /event\.payload is a symbol/],
    ['a BigInt', { ...ok, payload: { a: [1n] } }, /event\.payload\.a\[0\] is a BigInt/],
    ['NaN', { ...ok, payload: { total: Number.NaN } }, /event\.payload\.total is NaN/],
    ['Infinity', { ...ok, payload: [Infinity] }, /event\.payload\[0\] is Infinity/],
    [
      'a function inside',
      { ...ok, payload: { 'on paid': () => 1 } },
      /event\.payload\["on paid"\] is a function/,
    ],
    ['a Map', { ...ok, payload: { m: new Map([[1, 2]]) } }, /event\.payload\.m is a Map/],
    ['a circle', { ...ok, payload: circular }, /event\.payload\.self\.again is part of itself/],
    [
      'a toJSON that throws',
      {
        ...ok,
        payload: {
          toJSON: () => {
            throw new Error('not me')
          },
        },
      },
      /event\.payload cannot be written as JSON: not me/,
    ],
    [
      'a toJSON that returns nothing',
      { ...ok, payload: { toJSON: () => undefined } },
      /turns into undefined/,
    ],
    [
      '\\u0000 in a text',
      { ...ok, payload: { a: ['x', 'y\0'] } },
      /event\.payload\.a\[1\] contains the character \\u0000/,
    ],
    [
      '\\u0000 in a key',
      { ...ok, payload: { a: { 'b\0': 1 } } },
      /event\.payload\.a contains a key with the character/,
    ],
    [
      'a payload nested 6,000 deep',
      { ...ok, payload: nested(6_000) },
      /event\.payload is nested more than 100 levels deep.*: flatten it/,
    ],
    ['a payload of 101 levels', { ...ok, payload: nested(101) }, /event\.payload is nested more than 100/],
    [
      'a toJSON that returns something nested 6,000 deep',
      { ...ok, payload: { toJSON: () => nested(6_000) } },
      /event\.payload is nested more than 100/,
    ],
    ['half a character', { ...ok, payload: '\ud83c!' }, /event\.payload contains half a surrogate pair/],
    [
      'headers that are a list',
      { ...ok, headers: ['a'] },
      /event\.headers is \[ 'a' \], but must be a plain object/,
    ],
    ['headers that are a Date', { ...ok, headers: new Date(0) }, /event\.headers is 1970-01-01/],
    ['headers that are a Map', { ...ok, headers: new Map([['a', 'b']]) }, /event\.headers is Map/],
    [
      'a number as header',
      { ...ok, headers: { n: 1 } },
      /event\.headers\.n is of type number, but must be a text/,
    ],
    [
      'headers that are too large',
      { ...ok, headers: { a: 'x'.repeat(16_384) } },
      /event\.headers have 16392 bytes, but can have at most 16384: put data into the payload/,
    ],
    ['null as header', { ...ok, headers: { n: null } }, /event\.headers\.n is of type null/],
    [
      'a header without a name',
      { ...ok, headers: { '': 'x' } },
      /event\.headers has a header without a name/,
    ],
    [
      'a line break in the name of a header',
      { ...ok, headers: { 'a\r\nb': 'x' } },
      /control character in the name 'a\\r\\nb'/,
    ],
    [
      'a line break in a header',
      { ...ok, headers: { a: 'x\r\nb: y' } },
      /event\.headers\.a contains a control character/,
    ],
    ['an invalid Date', { ...ok, availableAt: new Date('never') }, /event\.availableAt is Invalid Date/],
    [
      'a date that is a text',
      { ...ok, availableAt: '2031-01-01' },
      /event\.availableAt is '2031-01-01', but must be a Date/,
    ],
    ['a date beyond the calendar', { ...ok, availableAt: new Date(8.64e15) }, /up to the year 9999/],
    [
      'NaN as maxAttempts',
      { ...ok, maxAttempts: Number.NaN },
      /event\.maxAttempts is NaN, but must be a whole number/,
    ],
    ['0 as maxAttempts', { ...ok, maxAttempts: 0 }, /event\.maxAttempts is 0/],
    ['a fraction as maxAttempts', { ...ok, maxAttempts: 1.5 }, /event\.maxAttempts is 1\.5/],
  ])('%s', async (_, event, message) => {
    expect(await refusal(event)).toMatchObject({
      code: 'EVENT_INVALID',
      message: expect.stringMatching(message),
    })
    expect(await count()).toBe(0)
  })

  it('one bad event of an array refuses the array, by its position', async () => {
    const events = [ok, { ...ok, orderingKey: 'a\0b' }, { ...ok, payload: nested(101) }]
    expect(await refusal(events)).toMatchObject({
      code: 'EVENT_INVALID',
      message: expect.stringMatching(
        /events\[1\]\.orderingKey contains the character .*'a\\x00b'.*events\[2\]\.payload is nested .*Correct the fields named/,
      ),
    })
    expect(await count()).toBe(0)
  })

  it('one error lists the problems of all events, up to twenty', async () => {
    const events = [
      { type: '', payload: undefined },
      { type: 'fine', payload: 1 },
      ...Array.from({ length: 30 }, () => ({ type: 'a', payload: 1, eventId: 'x' })),
    ]
    const outcome = enqueue(db, events)
    await expect(outcome).rejects.toThrow(
      /events\[0\]\.type is ''.*events\[0\]\.payload is undefined.*events\[2\]\.eventId/,
    )
    await expect(outcome).rejects.toThrow(
      /events\[19\]\.eventId is 'x', but must be a uuid; and 12 more\. Correct/,
    )
    expect(await count()).toBe(0)
  })

  it('no message repeats the contents of a payload or a header', async () => {
    const event = { type: 'a', payload: { secret: ['hunter2', 1n] }, headers: { authorization: 'hunter2\n' } }
    expect(String(await refusal(event))).not.toContain('hunter2')
  })
})

describe('written as it was given', () => {
  it.each([
    ['a backslash before u0000', String.raw`\u0000 and \ud800`],
    ['two of them', String.raw`\\u0000`],
    ['an escaped control character', '\u0001\u001f'],
    ['a whole surrogate pair', { '🎉': '𝄞' }],
    ['a Date', new Date(0), new Date(0).toJSON()],
    ['a field that is undefined', { a: 1, b: undefined }, { a: 1 }],
    ['lists of 100 levels', nested(100)],
    ['many lists, one after the other', Array.from({ length: 300 }, () => [[]])],
    ['brackets in texts', '[{'.repeat(300)],
    ['the same object twice, which is no circle', [circularTwin(), circularTwin()]],
  ])('%s', async (_, payload: unknown, expected: unknown = payload) => {
    const { id } = await enqueue(db, { type: 'a', payload })
    const { rows } = await db.query({
      text: 'select payload from leasehold.outbox where id = $1',
      values: [id],
    })
    expect(rows).toEqual([{ payload: expected }])
  })

  it('an ordering key of the maximum length whose text does not compress', async () => {
    const orderingKey = Array.from({ length: 512 }, (_, i) =>
      String.fromCharCode(0x80 + ((i * 7919) % 0x700)),
    ).join('')
    expect(await enqueue(db, { type: 'a', payload: 1, orderingKey })).toMatchObject({ duplicate: false })
  })
})

function circularTwin(): object {
  const one = { a: 1 }
  return { left: one, right: one }
}

describe('size', () => {
  it('a payload of more than 256 KiB is refused with its type, its size and the limit', async () => {
    const payload = 'é'.repeat(131_072)
    const outcome = enqueue(db, { type: 'order.paid', payload })
    await expect(outcome).rejects.toMatchObject({
      code: 'EVENT_TOO_LARGE',
      message: expect.stringMatching(
        /event\.payload of type order\.paid has 262146 bytes, and at most maxPayloadBytes = 262144 are allowed\. Store/,
      ),
    })
  })

  it('one of exactly 256 KiB is written', async () => {
    expect(await enqueue(db, { type: 'a', payload: 'x'.repeat(262_142) })).toMatchObject({ duplicate: false })
  })

  it('is that of the JSON text as PostgreSQL prints it, so that the table accepts everything that enqueue accepts', async () => {
    // In jsonb each comma, and each colon, is followed by a space.
    const most = { list: Array.from({ length: 87_378 }, () => 1) }
    expect(await enqueue(db, { type: 'a', payload: most })).toMatchObject({ duplicate: false })
    const oneMore = { list: [...most.list, 1] }
    await expect(enqueue(db, { type: 'a', payload: oneMore })).rejects.toMatchObject({
      code: 'EVENT_TOO_LARGE',
      message: expect.stringContaining('has 262147 bytes'),
    })
    const headers = Object.fromEntries(Array.from({ length: 1_365 }, (_, i) => [`${i + 1_000}`, '']))
    expect(await enqueue(db, { type: 'a', payload: 1, headers })).toMatchObject({ duplicate: false })
    await expect(enqueue(db, { type: 'a', payload: 1, headers: { ...headers, 9999: '' } })).rejects.toThrow(
      /event\.headers have 16392 bytes/,
    )
  })

  it('numbers with an exponent count as PostgreSQL prints them, in full', async () => {
    const stored = async (payload: unknown): Promise<number> => {
      const { id } = await enqueue(db, { type: 'a', payload })
      const { rows } = await db.query<{ bytes: number }>({
        text: 'select octet_length(payload::text) as bytes from leasehold.outbox where id = $1',
        values: [id],
      })
      return rows[0]?.bytes ?? Number.NaN
    }
    for (const number of [1e300, -1.5e300, 1.2345e21, 1e-7, -1.5e-300, 5e-324, Number.MAX_VALUE]) {
      const payload = { 'a "1e300" text': '1e300', list: Array.from({ length: 300 }, () => number) }
      const bytes = await stored(payload)
      const tight = createOutbox({ maxPayloadBytes: bytes })
      expect(await tight.enqueue(db, { type: 'a', payload })).toMatchObject({ duplicate: false })
      const tighter = createOutbox({ maxPayloadBytes: bytes - 1 })
      await expect(tighter.enqueue(db, { type: 'a', payload })).rejects.toThrow(`has ${bytes} bytes`)
    }
    const most = { list: Array.from({ length: 900 }, () => 1e300) }
    await expect(enqueue(db, { type: 'a', payload: most })).rejects.toMatchObject({ code: 'EVENT_TOO_LARGE' })
  })

  it('the limit can be set', async () => {
    const outbox = createOutbox({ maxPayloadBytes: 10 })
    await expect(outbox.enqueue(db, { type: 'a', payload: '123456789' })).rejects.toThrow(
      /has 11 bytes.*= 10 are/,
    )
    expect(await outbox.enqueue(db, { type: 'a', payload: '12345678' })).toMatchObject({ duplicate: false })
  })
})
