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
import { type Clock, systemClock } from '../../clock.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../../worker/index.ts'
import { verify } from '../signing/verify.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()
const BOUND = { timeout: 120_000, interval: 20 }

beforeEach(async () => forgetWebhooks(db))
afterAll(async () => db.close())

describe('deliveries', () => {
  it('every attempt is signed and has the same id, and all attempts are recorded', async () => {
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

  it('the headers of an endpoint are not stored, even if the receiver repeats what it was sent', async () => {
    const authorization = 'Bearer a"b\\\\c.d-e'
    const answers = [
      () => `you sent ${authorization}`,
      (headers: object) => JSON.stringify(headers),
      () => `unknown token: ${authorization.slice('Bearer '.length)}`,
      () => `${'x'.repeat(1_015)}${authorization}`,
      () => `${authorization.repeat(40)}${authorization.slice(0, 10)}`,
    ]
    const target = await receiver(({ headers }, response) => {
      response.writeHead(500).end(answers[target.received.length - 1]?.(headers))
    })
    await addEndpoint(db, target.url, { headers: { authorization, 'x-n': '1' } })
    await sendAll(db, null)
    const { events } = await startDispatcher({ schedule: [0, 0, 0, 0] })
    await collect(events, 'settled', (all) => all.some(({ outcome }) => outcome === 'dead'))
    const { rows } = await db.query<{ response: string }>({
      text: 'select response from leasehold.webhook_attempts order by id',
    })
    expect(rows.map(({ response }) => response)).toEqual([
      'you sent ***',
      expect.stringContaining('"x-n":"1","authorization":"***"'),
      'unknown token: ***',
      `${'x'.repeat(1_015)}***`,
      '***'.repeat(41),
    ])
    expect(JSON.stringify(await deliveries(db))).not.toContain('d-e')
  })

  it('a delivery fails after its last attempt', async () => {
    const target = await receiver(() => 500)
    await addEndpoint(db, target.url)
    await sendAll(db, null)
    const { events } = await startDispatcher({ schedule: [0] })
    await collect(events, 'settled', (all) => all.some(({ outcome }) => outcome === 'dead'))
    expect(await deliveries(db)).toMatchObject([
      { delivery_status: 'failed', attempts: 2, last_error: 'answered with HTTP 500' },
    ])
  })

  it('a running dispatcher delivers to an endpoint that was created meanwhile', async () => {
    await startDispatcher()
    const target = await receiver()
    await addEndpoint(db, target.url)
    await sendAll(db, null)
    await target.reached(1)
    expect(target.received).toHaveLength(1)
  })
})

describe('responses', () => {
  it('a 3xx response is a failure, and the redirect is not followed', async () => {
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

  it('a 410 response disables the endpoint and stores the reason', async () => {
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

  it.each([429, 503])(
    'a %i response with Retry-After pauses the endpoint, for an hour at most',
    async (status) => {
      const target = await receiver((_, response) => {
        response.writeHead(status, { 'retry-after': '86400' }).end()
        return undefined
      })
      await addEndpoint(db, target.url, { concurrency: 1 })
      await sendAll(db, null, null)
      const { events } = await startDispatcher({ schedule: [10] })
      await settled(events, 1)
      const [first, second] = await deliveries(db)
      const { rows } = await db.query({
        text: `select extract(epoch from next_attempt_at - (history->-1->>'recorded_at')::timestamptz)::int as seconds
        from leasehold.webhook_outbox where id = $1`,
        values: [first?.id],
      })
      expect(rows).toEqual([{ seconds: 3_600 }])
      // The other delivery was not attempted, because the endpoint is paused.
      expect(second).toMatchObject({ attempts: 0, last_error_code: null })
      expect(target.received).toHaveLength(1)
    },
  )
})

describe('limits of endpoints', () => {
  it('an endpoint that never answers does not delay other endpoints', async () => {
    const silent = await receiver(async () => new Promise<never>(() => undefined))
    const healthy = await receiver()
    await addEndpoint(db, silent.url)
    await addEndpoint(db, healthy.url)
    await sendAll(db, ...Array.from({ length: 500 }, () => null))
    const { events } = await startDispatcher()
    await collect(
      events,
      'settled',
      (all) => all.flatMap(({ outcome, ids }) => (outcome === 'done' ? ids : [])).length === 500,
    )
    expect(healthy.received).toHaveLength(500)
    expect(silent.most).toBe(10)
  })

  it('all dispatchers together do not exceed the concurrency of an endpoint', async () => {
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

  it('an endpoint gets no more deliveries than its rate allows', async () => {
    const clock = stoppedClock()
    const [limited, unlimited] = [await receiver(), await receiver()]
    await addEndpoint(db, limited.url, { rate_per_second: 100, concurrency: 100 })
    await addEndpoint(db, unlimited.url)
    await sendAll(db, ...Array.from({ length: 40 }, () => null))
    await startDispatcher({ clock })
    await Promise.all([limited.reached(1), unlimited.reached(40)])
    expect(limited.received).toHaveLength(1)
    clock.advance(50)
    await limited.reached(6)
    // A long pause allows a burst of a tenth of a second, and no more.
    clock.advance(10_000)
    await limited.reached(16)
    await sendAll(db, null)
    await unlimited.reached(41)
    expect(limited.received).toHaveLength(16)
  })

  it('an ordered endpoint gets the events of a key one at a time, in the order sent', async () => {
    let n = 0
    const target = await receiver(() => ((n += 1) % 3 === 0 ? 500 : 204))
    await addEndpoint(db, target.url, { ordered: true })
    await sendAll(db, ...Array.from({ length: 60 }, (_, i) => `key ${i % 3}`))
    const { events } = await startDispatcher({
      schedule: Array.from({ length: 20 }, () => 0),
      circuitBreaker: { failureThreshold: 1_000 },
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

describe('the circuit breaker', () => {
  interface Circuit {
    readonly open: boolean
    readonly failures: number
  }

  async function circuit(): Promise<Circuit[]> {
    const text = 'select failing_since is not null as open, failures from leasehold.webhook_endpoints'
    return (await db.query<Circuit>({ text })).rows
  }

  it('the circuit opens after failures in a row, lets a probe through, and closes when the probe succeeds', async () => {
    const clock = stoppedClock()
    const target = await receiver(() => 500)
    await addEndpoint(db, target.url, { concurrency: 1 })
    await sendAll(db, ...Array.from({ length: 20 }, () => null))
    await startDispatcher({
      clock,
      circuitBreaker: { failureThreshold: 3, openMs: 200 },
      schedule: [0, 0, 0, 0, 0, 0, 0],
    })
    await expect.poll(circuit, BOUND).toEqual([{ open: true, failures: 3 }])
    expect(target.received).toHaveLength(3)
    clock.advance(200)
    await expect.poll(circuit, BOUND).toEqual([{ open: true, failures: 4 }])
    expect(target.received).toHaveLength(4)
    target.answer(() => 204)
    clock.advance(400)
    await target.reached(24)
    await expect.poll(circuit, BOUND).toEqual([{ open: false, failures: 0 }])
  })
})

/** A clock that stands until the test advances it. */
function stoppedClock(): Clock & { advance(ms: number): void } {
  let now = systemClock.monotonicNow()
  return {
    monotonicNow: () => now,
    advance(ms) {
      now += ms
    },
  }
}
