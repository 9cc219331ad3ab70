import { afterAll, beforeEach, describe, expect, expectTypeOf, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { forgetWebhooks, makeEndpoint, writtenDeliveries } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { Sent } from './fan-out.ts'
import { createWebhooks, type NewWebhook, send } from './send.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

const EVENT_ID = '0190b3a0-0000-7000-8000-00000000000a'

describe('names that are not known', () => {
  const event = { type: 'order.paid', payload: {} }

  it.each<[object, string]>([
    [{ ...event, tennant: 'acme' }, 'event has the unknown field tennant (did you mean tenant?)'],
    [{ ...event, tennant: undefined }, 'event has the unknown field tennant'],
    [{ ...event, ordering_key: 'a' }, 'event has the unknown field ordering_key (did you mean orderingKey?)'],
    [
      { ...event, somethingElse: 1 },
      'event has the unknown field somethingElse (the fields are type, payload,',
    ],
  ])('send refuses the event %j, names the field and writes nothing', async (given, message) => {
    await makeEndpoint(db)
    // As a caller without types would.
    const sending = send(db, given as NewWebhook)
    await expect(sending).rejects.toThrow(message)
    await expect(sending).rejects.toMatchObject({ code: 'EVENT_INVALID' })
    expect(await writtenDeliveries(db)).toEqual([])
  })

  it.each<[unknown, string]>([
    [{ shema: 'app' }, 'The options of createWebhooks: unknown option shema (did you mean schema?)'],
    [{ maxAttempts: 3 }, 'unknown option maxAttempts'],
    [null, 'they are null, but must be an object'],
    ['app', "they are 'app', but must be an object"],
  ])('createWebhooks refuses the options %j', (options, message) => {
    const create = () => createWebhooks(options as object)
    expect(create).toThrow(message)
    expect(create).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
  })
})

describe('one event', () => {
  it('an event goes to every enabled endpoint of its tenant that has subscribed to its type, and to no other', async () => {
    const subscribed = [
      await makeEndpoint(db, { tenant: 'acme' }),
      await makeEndpoint(db, { tenant: 'acme', eventTypes: ['user.deleted', 'order.paid'] }),
      await makeEndpoint(db, { tenant: 'acme', eventTypes: ['order.*'] }),
      await makeEndpoint(db, { tenant: 'acme', eventTypes: ['*'] }),
    ]
    await makeEndpoint(db, { tenant: 'acme', eventTypes: ['order'] })
    await makeEndpoint(db, { tenant: 'acme', eventTypes: ['order.paid.late', 'orders.*'] })
    await makeEndpoint(db, { tenant: 'acme', enabled: false })
    await makeEndpoint(db, { tenant: 'other' })
    await makeEndpoint(db)

    const { eventId, deliveries } = await send(db, { type: 'order.paid', payload: {}, tenant: 'acme' })
    expect(deliveries).toBe(4)
    const written = await writtenDeliveries(db)
    expect(written.map(({ endpoint_id }) => endpoint_id).sort()).toEqual(subscribed.sort())
    expect(new Set(written.map(({ event_id }) => event_id))).toEqual(new Set([eventId]))
  })

  it('an event without a tenant goes to endpoints without a tenant only', async () => {
    await makeEndpoint(db, { tenant: 'acme' })
    const ours = await makeEndpoint(db)
    expect(await send(db, { type: 'a', payload: 1 })).toMatchObject({ deliveries: 1 })
    expect(await writtenDeliveries(db)).toMatchObject([{ endpoint_id: ours }])
  })

  it('an event without subscribed endpoints creates no delivery and is not an error', async () => {
    expect(await send(db, { type: 'a', payload: 1, eventId: EVENT_ID })).toEqual({
      eventId: EVENT_ID,
      deliveries: 0,
    })
    expect(await send(db, [])).toEqual([])
  })

  it('all endpoints get the same body: the type, the time of sending, and the payload exactly as given', async () => {
    await makeEndpoint(db)
    await makeEndpoint(db)
    const payload = {
      text: `a ? b ?? $1 :x 'quoted' "twice" \\ back\nline 漢字 🎉 </script>`,
      'order of keys': { z: 1, a: [true, null, 1e21, -0.5] },
      json: '{"not": "parsed"}',
    }
    const before = Date.now()
    await send(db, { type: `it's "paid" $1`, payload })
    const bodies = (await writtenDeliveries(db)).map(({ body }) => body)
    expect(bodies[0]).toBe(bodies[1])
    const { timestamp } = JSON.parse(bodies[0] ?? '') as { timestamp: string }
    expect(bodies[0]).toBe(JSON.stringify({ type: `it's "paid" $1`, timestamp, data: payload }))
    expect(new Date(timestamp).toISOString()).toBe(timestamp)
    expect(Date.parse(timestamp)).toBeGreaterThanOrEqual(before)
    expect(Date.parse(timestamp)).toBeLessThanOrEqual(Date.now())
  })

  it('a delivery exists exactly if its transaction commits', async () => {
    await makeEndpoint(db)
    await expect(
      db.transaction(async (tx) => {
        expect(await send(tx, { type: 'a', payload: 1 })).toMatchObject({ deliveries: 1 })
        throw new Error('changed my mind')
      }),
    ).rejects.toThrow('changed my mind')
    expect(await writtenDeliveries(db)).toEqual([])
    await db.transaction(async (tx) => send(tx, { type: 'a', payload: 1 }))
    expect(await writtenDeliveries(db)).toHaveLength(1)
  })

  it('an event that is sent a second time goes only to endpoints that did not get it the first time', async () => {
    const first = await makeEndpoint(db)
    const event = { type: 'a', payload: 1, eventId: EVENT_ID.toUpperCase() }
    expect(await send(db, event)).toEqual({ eventId: EVENT_ID, deliveries: 1 })
    expect(await send(db, event)).toEqual({ eventId: EVENT_ID, deliveries: 0 })
    const second = await makeEndpoint(db)
    expect(await send(db, [event, event])).toEqual([
      { eventId: EVENT_ID, deliveries: 1 },
      { eventId: EVENT_ID, deliveries: 0 },
    ])
    const written = await writtenDeliveries(db)
    expect(written.map(({ endpoint_id }) => endpoint_id)).toEqual([first, second])
  })

  it('an event that several transactions send concurrently creates one delivery', async () => {
    await makeEndpoint(db)
    const sent = await Promise.all(
      Array.from({ length: 8 }, async () => send(db, { type: 'a', payload: 1, eventId: EVENT_ID })),
    )
    expect(sent.reduce((sum, { deliveries }) => sum + deliveries, 0)).toBe(1)
    expect(await writtenDeliveries(db)).toHaveLength(1)
  })

  it('only ordered endpoints get the ordering key, and the delivery is due when the event is available', async () => {
    const ordered = await makeEndpoint(db, { ordered: true })
    const other = await makeEndpoint(db)
    const availableAt = new Date('2031-02-03T04:05:06.789Z')
    await send(db, { type: 'a', payload: 1, orderingKey: 'k', availableAt })
    await send(db, { type: 'b', payload: 1 })
    const written = await writtenDeliveries(db)
    const deliveryOf = (type: string, endpoint: string): unknown =>
      written.find(({ event_type, endpoint_id }) => event_type === type && endpoint_id === endpoint)
    expect(deliveryOf('a', ordered)).toMatchObject({ ordering_key: 'k', next_attempt_at: availableAt })
    expect(deliveryOf('a', other)).toMatchObject({ ordering_key: null, next_attempt_at: availableAt })
    expect(deliveryOf('b', ordered)).toMatchObject({ ordering_key: null })
    const due = written.filter(({ event_type }) => event_type === 'b')
    expect(due.map(({ next_attempt_at }) => next_attempt_at)).toEqual(due.map(({ created_at }) => created_at))
  })
})

describe('many events', () => {
  it('5,000 events for 3 endpoints are written in one call, for each endpoint in the order given', async () => {
    const endpoints = [
      await makeEndpoint(db),
      await makeEndpoint(db, { eventTypes: ['order.*'], ordered: true }),
    ]
    endpoints.push(await makeEndpoint(db, { ordered: true }))
    const events = Array.from({ length: 5_000 }, (_, n) => ({
      type: n % 2 === 0 ? 'order.paid' : 'order.sent',
      payload: { n },
      orderingKey: `customer ${n % 7}`,
    }))
    const sent = await db.transaction(async (tx) => send(tx, events))
    expect(sent.every(({ deliveries }) => deliveries === 3)).toBe(true)
    const written = await writtenDeliveries(db)
    expect(written).toHaveLength(15_000)
    for (const endpoint of endpoints) {
      const numbers = written
        .filter(({ endpoint_id }) => endpoint_id === endpoint)
        .map(({ body }) => (JSON.parse(body) as { data: { n: number } }).data.n)
      expect(numbers).toEqual(events.map(({ payload }) => payload.n))
    }
  })

  it('all events are refused if one is invalid, and the transaction can continue', async () => {
    await makeEndpoint(db)
    const good = { type: 'a', payload: 1 }
    const message = await db.transaction(async (tx) => refusal(send(tx, [good, wrong({ type: '' })])))
    expect(message).toContain("events[1].type is ''")
    expect(message).toContain('events[1].payload is undefined')
    expect(message).toContain('send again')
    expect(await writtenDeliveries(db)).toEqual([])
  })
})

describe('validation', () => {
  const ok = { type: 'order.paid', payload: { id: 1 } }
  it.each([
    ['a tenant that is not a text', { ...ok, tenant: 7 }, /event\.tenant is 7, but must be a text/],
    ['null as tenant', { ...ok, tenant: null }, /event\.tenant is null/],
    ['a tenant that is too long', { ...ok, tenant: 'x'.repeat(256) }, /event\.tenant has 256 bytes/],
    ['a tenant that cannot be stored', { ...ok, tenant: 'a\0' }, /event\.tenant contains the character/],
    [
      'a header that is not a trace header',
      { ...ok, headers: { 'webhook-id': 'x' } },
      /event\.headers has 'webhook-id', but only traceparent/,
    ],
    [
      'an event id that is not a uuid',
      { ...ok, eventId: 'one' },
      /event\.eventId is 'one', but must be a uuid/,
    ],
    ['a time that is not a Date', { ...ok, availableAt: 'tomorrow' }, /event\.availableAt is 'tomorrow'/],
    [
      'a payload that JSON cannot express',
      { ...ok, payload: { at: Number.NaN } },
      /event\.payload\.at is NaN/,
    ],
    [
      'a payload that is too large',
      { ...ok, payload: 'x'.repeat(262_143) },
      /has 262145 bytes.*maxPayloadBytes = 262144/,
    ],
  ])('send refuses %s, names the field and writes nothing', async (_, event, message) => {
    await makeEndpoint(db)
    expect(await refusal(send(db, wrong(event)))).toMatch(message)
    expect(await writtenDeliveries(db)).toEqual([])
  })

  it('createWebhooks refuses invalid options and names all of them', () => {
    expect(() => createWebhooks({ schema: '', maxPayloadBytes: 0 })).toThrow(
      /The options of createWebhooks: maxPayloadBytes is 0.*schema is ''/,
    )
  })
})

describe('createWebhooks', () => {
  it('createWebhooks validates payloads by their schemas and refuses other types', async () => {
    await makeEndpoint(db)
    const webhooks = createWebhooks({ events: { 'order.paid': atLeastOne } })
    expectTypeOf(webhooks.send).toBeCallableWith(db, { type: 'order.paid', payload: 3 })
    expect(await webhooks.send(db, { type: 'order.paid', payload: 3 })).toMatchObject({ deliveries: 1 })
    expect(await refusal(webhooks.send(db, { type: 'order.paid', payload: 0 }))).toContain('at least 1')
    // @ts-expect-error -- there is no such event
    const unknown = webhooks.send(db, { type: 'order.lost', payload: 1 })
    expect(await refusal(unknown)).toContain('the types of these webhooks are order.paid')
  })

  it('the type parameter of createWebhooks determines the types of payloads', () => {
    interface Events {
      'order.paid': { readonly id: string }
    }
    const typed = createWebhooks<Events>()
    expectTypeOf<Parameters<typeof typed.send>[1]>().toEqualTypeOf<
      NewWebhook<Events> | readonly NewWebhook<Events>[]
    >()
    expectTypeOf(async () => send(db, [{ type: 'a', payload: 1 }])).returns.toEqualTypeOf<
      Promise<readonly Sent[]>
    >()
    expectTypeOf(async () => send(db, { type: 'a', payload: 1 })).returns.toEqualTypeOf<Promise<Sent>>()
  })
})

const atLeastOne = {
  '~standard': {
    version: 1,
    vendor: 'test',
    validate: (value: unknown) =>
      typeof value === 'number' && value >= 1 ? { value } : { issues: [{ message: 'at least 1' }] },
    types: undefined as { input: number; output: number } | undefined,
  },
} as const

/** As JavaScript would pass it: much of this does not compile. */
function wrong(event: unknown): NewWebhook {
  return event as NewWebhook
}

async function refusal(sending: Promise<unknown>): Promise<string> {
  return sending.then(
    () => 'was sent',
    (error: unknown) => (error instanceof Error ? error.message : String(error)),
  )
}
