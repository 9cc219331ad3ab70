import { randomBytes } from 'node:crypto'
import { Pool } from 'pg'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'

import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { eventually } from '../../../test/support/brokers/eventually.ts'
import { freePort } from '../../../test/support/brokers/broker.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { records, useRelays } from '../../../test/support/running-relay.ts'
import { forgetWebhooks, makeEndpoint, writtenDeliveries } from '../../../test/support/webhook-endpoints.ts'
import { enqueue } from '../enqueue/enqueue.ts'
import type { OutboxEvent } from '../event.ts'
import type { Publisher } from '../publisher.ts'
import { openDatabase } from '../../postgres/database.ts'
import { done, SaturatedError } from '../../worker/completion/outcome.ts'
import { webhooksPublisher, type WebhooksPublisherOptions } from './webhooks.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
afterAll(async () => db.close())
beforeEach(async () => {
  await forgetWebhooks(db)
  await db.query({ text: 'truncate leasehold.outbox' })
})

const DONE = done()

async function publish(
  events: readonly OutboxEvent[],
  options: WebhooksPublisherOptions = { db },
): Promise<unknown> {
  const publisher = webhooksPublisher(options)
  try {
    return await publisher.publish(events, publishContext())
  } finally {
    await publisher.close?.()
  }
}

describe('publishing', () => {
  it('creates a delivery for each subscribed endpoint, with the id, the key and the trace of the event', async () => {
    const ordered = await makeEndpoint(db, { ordered: true })
    await makeEndpoint(db, { eventTypes: ['order.*'] })
    await makeEndpoint(db, { eventTypes: ['user.*'] })
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    const headers = { Traceparent: traceparent, baggage: 'customer=7', 'webhook-id': 'forged' }
    const event = outboxEvent({ headers })
    expect(await publish([event])).toEqual([DONE])
    const written = await writtenDeliveries(db)
    expect(written).toHaveLength(2)
    for (const delivery of written) {
      expect(delivery).toMatchObject({
        event_id: event.eventId,
        event_type: 'order.paid',
        ordering_key: delivery.endpoint_id === ordered ? 'customer-7' : null,
        headers: { traceparent },
      })
      expect(delivery.headers).toEqual({ traceparent })
      expect(delivery.body).toBe(
        JSON.stringify({ type: 'order.paid', timestamp: '2026-03-01T12:00:00.250Z', data: event.payload }),
      )
    }
  })

  it('an event twice adds no delivery', async () => {
    await makeEndpoint(db)
    const events = outboxEvents(20)
    expect(await publish(events)).toEqual(events.map(() => DONE))
    const before = await writtenDeliveries(db)
    expect(await publish(events)).toEqual(events.map(() => DONE))
    expect(await writtenDeliveries(db)).toEqual(before)
    expect(before.map(({ event_id }) => event_id)).toEqual(events.map(({ eventId }) => eventId))
  })

  it('sends only the selected types, to the tenant of the event', async () => {
    await makeEndpoint(db)
    const acme = await makeEndpoint(db, { tenant: 'acme' })
    const events = [
      outboxEvent({ payload: { tenant: 'acme' } }),
      outboxEvent({ type: 'user.gone', payload: { tenant: 'acme' } }),
    ]
    const tenant = ({ payload }: OutboxEvent): string => (payload as { tenant: string }).tenant
    expect(await publish(events, { db, tenant, types: ['order.*'] })).toEqual([DONE, DONE])
    expect(await writtenDeliveries(db)).toMatchObject([{ endpoint_id: acme, event_type: 'order.paid' }])
  })

  it('uses the user’s pool and leaves it open, or opens one and closes it', async () => {
    await makeEndpoint(db)
    const pool = new Pool({ connectionString: url, max: 1 })
    try {
      expect(await publish([outboxEvent()], { db: pool })).toEqual([DONE])
      expect(await pool.query('select 1 as one')).toMatchObject({ rows: [{ one: 1 }] })
    } finally {
      await pool.end()
    }
    expect(await publish([outboxEvent()], { connectionString: url })).toEqual([DONE])
    expect(await writtenDeliveries(db)).toHaveLength(2)
  })
})

describe('an event that cannot be sent', () => {
  it('is dead when the database will never accept it, and the others are sent', async () => {
    await makeEndpoint(db, { ordered: true })
    const events = outboxEvents(3, (n) => ({
      orderingKey: n === 1 ? randomBytes(6_000).toString('base64') : 'k',
    }))
    const answers = await publish(events)
    expect(answers).toMatchObject([DONE, { name: 'dead' }, DONE])
    expect(JSON.stringify(answers)).toContain('it cannot be sent')
    expect(await publish(events.slice(1, 2))).toMatchObject([{ name: 'dead' }])
    expect((await writtenDeliveries(db)).map(({ event_id }) => event_id)).toEqual([
      events[0]?.eventId,
      events[2]?.eventId,
    ])
  })

  it('is retried when its tenant cannot be determined', async () => {
    await makeEndpoint(db)
    const tenant = ({ payload }: OutboxEvent): string => {
      if (payload === 'throws') throw new Error('no such customer')
      // As JavaScript would have it.
      return payload === 'nothing' ? (undefined as unknown as string) : ''
    }
    const events = ['throws', 'nothing', 'fine'].map((payload) => outboxEvent({ payload }))
    const answers = await publish(events, { db, tenant })
    expect(answers).toMatchObject([{ name: 'retry' }, { name: 'retry' }, DONE])
    expect(JSON.stringify(answers)).toMatch(/no such customer.*tenant is undefined/)
    expect(await writtenDeliveries(db)).toHaveLength(1)
  })
})

describe('a database', () => {
  it('that cannot be reached releases the events, and the probe rejects', async () => {
    const publisher = webhooksPublisher({
      connectionString: `postgresql://127.0.0.1:${await freePort()}/none`,
    })
    await expect(publisher.publish([outboxEvent()], publishContext())).rejects.toThrow(SaturatedError)
    await expect(publisher.probe?.(new AbortController().signal)).rejects.toThrow(/cannot be reached/)
    await publisher.close?.()
  })

  it('without the tables releases the events', async () => {
    const publisher = webhooksPublisher({ db, schema: 'nowhere' })
    const failing = publisher.publish([outboxEvent()], publishContext())
    await expect(failing).rejects.toThrow(SaturatedError)
    await expect(failing).rejects.toThrow(/cannot write deliveries.*nowhere/)
    await expect(publisher.probe?.(new AbortController().signal)).rejects.toThrow('nowhere')
    const right = webhooksPublisher({ db })
    await expect(right.probe?.(new AbortController().signal)).resolves.toBeUndefined()
  })

  it('that does not answer is waited for until the timeout, or until the relay stops', async () => {
    await makeEndpoint(db)
    await db.transaction(async (tx) => {
      await tx.query({ text: 'lock table leasehold.webhook_outbox in access exclusive mode' })
      const silent = publish([outboxEvent()], { connectionString: url, timeoutMs: 200 })
      await expect(silent).rejects.toThrow(SaturatedError)
      const stopping = new AbortController()
      const publisher = webhooksPublisher({ connectionString: url, timeoutMs: 2_000 })
      const stopped = publisher.publish([outboxEvent()], publishContext(stopping.signal))
      stopping.abort(new Error('stopping'))
      await expect(stopped).rejects.toThrow('stopping')
      await publisher.close?.()
    })
  })
})

describe('through a relay', () => {
  it('LIFE-15: an event that is published twice, because its relay did not settle it, is fanned out once', async () => {
    await makeEndpoint(db)
    await makeEndpoint(db, { ordered: true })
    const publications: string[] = []
    let goOn = (): void => {}
    const held = new Promise<void>((resolve) => (goOn = resolve))
    const target = webhooksPublisher({ connectionString: url })
    /** Its relay never hears that the deliveries are committed, as if it had died at that moment. */
    const unheard: Publisher = {
      ...target,
      async publish(events, context) {
        const answers = await target.publish(events, context)
        publications.push(...events.map(({ eventId }) => eventId))
        await held
        return answers
      },
    }
    const other = webhooksPublisher({ connectionString: url })
    const heard: Publisher = {
      ...other,
      async publish(events, context) {
        publications.push(...events.map(({ eventId }) => eventId))
        return other.publish(events, context)
      },
    }
    const ids = (
      await enqueue(
        db,
        Array.from({ length: 5 }, (_, n) => ({ type: 'order.paid', payload: { n }, orderingKey: `k${n}` })),
      )
    ).map(({ eventId }) => eventId)
    const first = await startRelay({ publisher: unheard })
    await eventually(async () => expect(publications).toHaveLength(5))
    expect(await writtenDeliveries(db)).toHaveLength(10)
    // What the reaper writes when the lease of a dead relay has ended.
    await db.query({
      text: `update leasehold.outbox set status = 'PENDING', attempts = attempts + 1, available_at = now(),
  claimed_at = null, claimed_by = null, locked_until = null`,
    })
    const stopped = first.runtime.stop()
    await startRelay({ publisher: heard })
    await eventually(async () => {
      expect((await records(db)).map(({ status }) => status)).toEqual(ids.map(() => 'PUBLISHED'))
    })
    goOn()
    await stopped
    expect(publications.toSorted()).toEqual([...ids, ...ids].toSorted())
    const written = await writtenDeliveries(db)
    expect(written).toHaveLength(10)
    expect(new Set(written.map(({ event_id, endpoint_id }) => `${event_id} ${endpoint_id}`)).size).toBe(10)
    expect(new Set(written.map(({ event_id }) => event_id))).toEqual(new Set(ids))
  })

  it('500 events of 20 keys reach an ordered endpoint in the order of their keys', async () => {
    await makeEndpoint(db, { ordered: true })
    const events = Array.from({ length: 500 }, (_, n) => ({
      type: 'order.paid',
      payload: { n },
      orderingKey: `k${n % 20}`,
    }))
    await enqueue(db, events)
    await startRelay({ publisher: webhooksPublisher({ connectionString: url }) })
    await eventually(async () => expect(await writtenDeliveries(db)).toHaveLength(500))
    const byKey = new Map<string | null, number[]>()
    for (const { ordering_key: key, body } of await writtenDeliveries(db)) {
      const { n } = (JSON.parse(body) as { data: { n: number } }).data
      byKey.set(key, [...(byKey.get(key) ?? []), n])
    }
    expect(byKey.size).toBe(20)
    for (const numbers of byKey.values()) expect(numbers).toEqual(numbers.toSorted((a, b) => a - b))
  })
})

describe('invalid options', () => {
  it.each([
    [{}, /connectionString.*Give either connectionString or db/],
    [{ connectionString: 'mysql://u:s3cret@a/b' }, /begins with postgresql:/],
    [{ db, types: ['order*'] }, /types\[0\] is 'order\*'/],
    [{ db, maxBatch: 0 }, /maxBatch.*cannot be 0/],
    [{ db, schema: '' }, /schema/],
  ] satisfies [WebhooksPublisherOptions, RegExp][])(
    'invalid options are refused: case %#',
    (options, message) => {
      expect(() => webhooksPublisher(options)).toThrow(message)
      expect(() => webhooksPublisher(options)).not.toThrow('s3cret')
    },
  )
})
