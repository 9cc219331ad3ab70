import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { forgetWebhooks, makeEndpoint, writtenDeliveries } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { send } from './send.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

describe('send_webhook(), for senders in any language', () => {
  it('send_webhook() writes the same document as send, to the same endpoints', async () => {
    await makeEndpoint(db, { tenant: 'acme', ordered: true })
    await makeEndpoint(db, { tenant: 'acme', eventTypes: ['other'] })
    const type = `it's "paid" \\ 漢\n`
    const payload = { text: 'a "b" \\ 🎉', n: 1.5, list: [null, true] }
    const availableAt = new Date('2031-02-03T04:05:06.789Z')
    const { rows } = await db.query({
      text: `select leasehold.send_webhook($1, $2, 'acme', 'k', $3, $4, $5) as sent`,
      values: [type, payload, { traceparent: 't' }, availableAt, '0190b3a0-0000-7000-8000-00000000000a'],
    })
    expect(rows).toEqual([{ sent: 1 }])
    await send(db, {
      type,
      payload,
      tenant: 'acme',
      orderingKey: 'k',
      headers: { traceparent: 't' },
      availableAt,
    })
    const [bySql, byUs, ...others] = await writtenDeliveries(db)
    expect(others).toEqual([])
    const stamped = /^\{"type":.*,"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z","data":\{/s
    expect(bySql?.body).toMatch(stamped)
    expect(byUs?.body).toMatch(stamped)
    const sent = (body = ''): unknown => ({ ...(JSON.parse(body) as object), timestamp: '' })
    expect(sent(bySql?.body)).toEqual(sent(byUs?.body))
    expect(Object.keys(JSON.parse(bySql?.body ?? '') as object)).toEqual(['type', 'timestamp', 'data'])
    const facts = ['event_type', 'endpoint_id', 'ordering_key', 'headers', 'next_attempt_at'] as const
    expect(facts.map((name) => bySql?.[name])).toEqual(facts.map((name) => byUs?.[name]))
  })

  it.each(["null, '1'", "'a', null"])(
    'send_webhook() refuses an event without a type or a payload: %s',
    async (given) => {
      await makeEndpoint(db)
      const text = `select leasehold.send_webhook(${given})`
      await expect(db.query({ text })).rejects.toThrow('an event has a type and a payload')
      expect(await writtenDeliveries(db)).toEqual([])
    },
  )

  it.each([
    [
      `(repeat('[', 101) || '1' || repeat(']', 101))::jsonb, available_at => now()`,
      '54000',
      '100 levels deep',
    ],
    [`'1', available_at => '10000-01-01'`, '23514', 'must be in the years 1 to 9999'],
    [`'1', available_at => 'infinity'`, '23514', 'is infinity, and must be in the years 1 to 9999'],
  ])(
    'send_webhook() refuses what send refuses, also without any endpoint: %s',
    async (given, code, message) => {
      const text = `select leasehold.send_webhook('a', ${given})`
      await expect(db.query({ text })).rejects.toMatchObject({
        code,
        message: expect.stringContaining(message),
        hint: expect.any(String),
      })
      await makeEndpoint(db)
      await expect(db.query({ text })).rejects.toMatchObject({ code })
      expect(await writtenDeliveries(db)).toEqual([])
    },
  )

  it('a payload of 100 levels, the deepest that is allowed, fits by send and by send_webhook()', async () => {
    await makeEndpoint(db)
    const text = `select leasehold.send_webhook('a', $1::jsonb) as sent`
    const json = `${'['.repeat(100)}1${']'.repeat(100)}`
    expect((await db.query({ text, values: [json] })).rows).toEqual([{ sent: 1 }])
    expect(await send(db, { type: 'a', payload: JSON.parse(json) })).toMatchObject({ deliveries: 1 })
    const deeper = { type: 'a', payload: JSON.parse(`[${json}]`) }
    await expect(send(db, deeper)).rejects.toMatchObject({
      code: 'EVENT_INVALID',
      message: expect.stringContaining('nested more than 100 levels deep'),
    })
    await expect(send(db, { type: 'a', payload: 1, availableAt: new Date('+010000-01-01') })).rejects.toThrow(
      'a valid Date up to the year 9999',
    )
    expect(await writtenDeliveries(db)).toHaveLength(2)
  })

  it('send_webhook() creates no second delivery of an event id, and refuses a payload that is too large', async () => {
    await makeEndpoint(db)
    const twice = `select leasehold.send_webhook('a', '1', event_id => '0190b3a0-0000-7000-8000-00000000000a') as sent`
    expect((await db.query({ text: twice })).rows).toEqual([{ sent: 1 }])
    expect((await db.query({ text: twice })).rows).toEqual([{ sent: 0 }])
    const large = { text: `select leasehold.send_webhook('a', to_jsonb(repeat('x', 262143)))` }
    await expect(db.query(large)).rejects.toThrow('has 262145 bytes, and at most 262144 are allowed')
    const fits = { text: `select leasehold.send_webhook('a', to_jsonb(repeat('x', 262142))) as sent` }
    expect((await db.query(fits)).rows).toEqual([{ sent: 1 }])
  })
})
