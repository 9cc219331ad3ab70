import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import {
  deliveries,
  deliveryStatuses,
  sendAll,
  useDispatchers,
} from '../../../test/support/running-dispatcher.ts'
import { addEndpoint, forgetWebhooks } from '../../../test/support/webhook-endpoints.ts'
import { collect, settled } from '../../../test/support/running-worker.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../../worker/index.ts'
import { verify } from '../signing/index.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()

beforeEach(async () => forgetWebhooks(db))
afterAll(async () => db.close())

describe('a delivery', () => {
  it('arrives signed, with the same id in every attempt, and is kept with its attempts', async () => {
    const target = await receiver((_, response) => {
      if (target.received.length < 3) return 500
      response.writeHead(200).end('thank you')
      return undefined
    })
    const { secret } = await addEndpoint(db, target.url, { headers: { 'x-team': 'blue' } })
    await sendAll(db, null)
    const { events } = await startDispatcher({ schedule: [10, 10, 10] })
    await settled(events, 1)
    await target.reached(3)
    await collect(events, 'settled', (all) => all.some(({ outcome }) => outcome === 'done'))

    const [first, second, third] = target.received
    expect(new Set(target.received.map(({ headers }) => headers['webhook-id'])).size).toBe(1)
    expect(target.received.map(({ headers }) => headers['webhook-attempt'])).toEqual(['1', '2', '3'])
    expect(first?.headers).toMatchObject({ 'content-type': 'application/json', 'x-team': 'blue' })
    expect(second?.headers['idempotency-key']).toBe(first?.headers['webhook-id'])
    await expect(
      verify({ headers: third?.headers ?? {}, body: third?.body ?? '' }, secret),
    ).resolves.toMatchObject({
      id: first?.headers['webhook-id'],
      payload: { type: 'test.happened', data: { n: 1 } },
    })

    expect(await deliveries(db)).toMatchObject([
      {
        delivery_status: 'delivered',
        attempts: 2,
        last_status: 200,
        last_response: 'thank you',
        lease_owner: null,
      },
    ])
    const { rows } = await db.query({
      text: 'select attempt, status, error_code, response, started_at < recorded_at as timed from leasehold.webhook_attempts order by id',
    })
    expect(rows).toEqual([
      { attempt: 1, status: 500, error_code: 'http500', response: '', timed: true },
      { attempt: 2, status: 500, error_code: 'http500', response: '', timed: true },
      { attempt: 3, status: 200, error_code: null, response: 'thank you', timed: true },
    ])
  })

  it('has failed after its last attempt', async () => {
    const target = await receiver(() => 500)
    await addEndpoint(db, target.url)
    await sendAll(db, null)
    const { events } = await startDispatcher({ schedule: [0] })
    await collect(events, 'settled', (all) => all.some(({ outcome }) => outcome === 'dead'))
    expect(await deliveries(db)).toMatchObject([
      { delivery_status: 'failed', attempts: 2, last_error: 'answered with HTTP 500' },
    ])
  })

  it('goes to an endpoint that was created while the dispatcher was running', async () => {
    await startDispatcher()
    const target = await receiver()
    await addEndpoint(db, target.url)
    await sendAll(db, null)
    await target.reached(1)
    expect(target.received).toHaveLength(1)
  })
})

describe('an answer', () => {
  it('3xx is a failure, and never followed', async () => {
    const elsewhere = await receiver()
    const target = await receiver((_, response) => {
      response.writeHead(307, { location: elsewhere.url }).end()
      return undefined
    })
    await addEndpoint(db, target.url)
    await sendAll(db, null)
    const { events } = await startDispatcher({ schedule: [] })
    await settled(events, 1)
    expect(await deliveries(db)).toMatchObject([{ delivery_status: 'failed', last_error_code: 'http307' }])
    expect(elsewhere.received).toEqual([])
  })

  it('410 disables the endpoint and says so', async () => {
    const target = await receiver(() => 410)
    await addEndpoint(db, target.url)
    await sendAll(db, null, null, null)
    const { events, runtime } = await startDispatcher()
    await settled(events, 1)
    await runtime.stop()
    const { rows } = await db.query({
      text: 'select enabled, disabled_reason, disabled_at is not null as since from leasehold.webhook_endpoints',
    })
    expect(rows).toEqual([{ enabled: false, disabled_reason: 'answered with HTTP 410 Gone', since: true }])
  })

  it.each([429, 503])('%i with Retry-After lets the endpoint rest, within bounds', async (status) => {
    const target = await receiver((_, response) => {
      response.writeHead(status, { 'retry-after': '86400' }).end()
      return undefined
    })
    await addEndpoint(db, target.url, { concurrency: 1 })
    await sendAll(db, null, null)
    const { events } = await startDispatcher({ schedule: [10] })
    await settled(events, 1)
    const [first, second] = await deliveries(db)
    const waits = (first?.next_attempt_at.getTime() ?? 0) - Date.now()
    expect(waits).toBeGreaterThan(3_500_000)
    expect(waits).toBeLessThan(3_700_000)
    // The other one was not attempted: the endpoint wants to be left alone.
    expect(second).toMatchObject({ attempts: 0, last_error_code: null })
    expect(target.received).toHaveLength(1)
  })
})

describe('endpoints beside each other', () => {
  it('one that never answers delays nobody, however much waits for it', async () => {
    const silent = await receiver(async () => new Promise<never>(() => undefined))
    const well = await receiver()
    await addEndpoint(db, silent.url)
    await addEndpoint(db, well.url)
    await sendAll(db, ...Array.from({ length: 500 }, () => null))
    const { events } = await startDispatcher()
    await collect(
      events,
      'settled',
      (all) => all.flatMap(({ outcome, ids }) => (outcome === 'done' ? ids : [])).length === 500,
    )
    expect(well.received).toHaveLength(500)
    expect(silent.most).toBe(10)
  })

  it('no more are on their way than the endpoint takes, by all dispatchers together', async () => {
    const target = await receiver(async () => {
      await new Promise((done) => setImmediate(done))
      return 204
    })
    await addEndpoint(db, target.url, { concurrency: 3 })
    const events = [new Events(), new Events()]
    for (const own of events) await startDispatcher({}, { events: own })
    await sendAll(db, ...Array.from({ length: 300 }, () => null))
    await target.reached(300)
    expect(target.most).toBeLessThanOrEqual(3)
  })

  it('no more begin in a second than the endpoint allows', async () => {
    const target = await receiver()
    await addEndpoint(db, target.url, { rate_per_second: 100 })
    await sendAll(db, ...Array.from({ length: 150 }, () => null))
    await startDispatcher()
    await target.reached(150)
    const times = target.received.map(({ at }) => at)
    for (const [i, at] of times.entries()) {
      const within = times.slice(i).filter((later) => later < at + 1_000).length
      expect(within).toBeLessThanOrEqual(115)
    }
  })

  it('with ordering, those of a key arrive one at a time, in the order in which they were sent', async () => {
    let n = 0
    const target = await receiver(() => ((n += 1) % 3 === 0 ? 500 : 204))
    await addEndpoint(db, target.url, { ordered: true })
    await sendAll(db, ...Array.from({ length: 60 }, (_, i) => `key ${i % 3}`))
    const { events } = await startDispatcher({
      schedule: Array.from({ length: 20 }, () => 0),
      breaker: { failures: 1_000 },
    })
    await collect(
      events,
      'settled',
      (all) => all.flatMap(({ outcome, ids }) => (outcome === 'done' ? ids : [])).length === 60,
    )
    const seen = new Map<number, number>()
    for (const { body } of target.received) {
      const { n: number } = (JSON.parse(body) as { data: { n: number } }).data
      const before = seen.get(number % 3) ?? 0
      expect(number).toBeGreaterThanOrEqual(before)
      seen.set(number % 3, number)
    }
    expect(await deliveryStatuses(db)).toEqual({ delivered: 60 })
  })
})

describe('a circuit', () => {
  it('opens after failures in a row, lets a probe through, and closes when that is answered', async () => {
    const target = await receiver(() => 500)
    await addEndpoint(db, target.url, { concurrency: 1 })
    await sendAll(db, ...Array.from({ length: 20 }, () => null))
    const { events } = await startDispatcher({
      breaker: { failures: 3, firstMs: 200 },
      schedule: [0, 0, 0, 0, 0, 0, 0],
    })
    await settled(events, 1)
    await target.reached(4)
    const opened = await db.query({
      text: 'select failing_since is not null as failing, failures >= 3 as counted from leasehold.webhook_endpoints',
    })
    expect(opened.rows).toEqual([{ failing: true, counted: true }])
    // Three attempts opened it, and one probe was made since.
    expect(target.received.length).toBeLessThanOrEqual(5)
    target.answer(() => 204)
    await target.reached(23)
    await expect
      .poll(
        async () =>
          (
            await db.query({
              text: 'select failing_since, open_until, failures from leasehold.webhook_endpoints',
            })
          ).rows,
      )
      .toEqual([{ failing_since: null, open_until: null, failures: 0 }])
  })
})
