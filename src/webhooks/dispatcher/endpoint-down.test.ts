/** 800 events for three endpoints, one of which is down. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { type Receiver, useReceivers } from '../../../test/support/receiver.ts'
import { deliveryStatuses, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint, forgetWebhooks } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { replay } from '../admin/replay.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()
const EVENTS = 800
const BOUND = { timeout: 150_000, interval: 50 }
const BY = { principal: 'the test', reason: 'the endpoint is back' }

beforeEach(async () => forgetWebhooks(db))
afterAll(async () => db.close())

async function sendEvents(): Promise<void> {
  await db.query({
    text: `select leasehold.send_webhook('test.happened', jsonb_build_object('n', n)) from generate_series(1, $1::int) as n`,
    values: [EVENTS],
  })
  await db.query({ text: 'analyze leasehold.webhook_outbox' })
}

/** How many deliveries of this endpoint are in each state. */
async function statusesOf(endpoint: string): Promise<Record<string, number>> {
  const { rows } = await db.query<{ status: string; count: number }>({
    text: `select delivery_status as status, count(*)::int as count from leasehold.webhook_outbox
      where endpoint_id = $1 group by 1`,
    values: [endpoint],
  })
  return Object.fromEntries(rows.map(({ status, count }) => [status, count]))
}

const idsOf = ({ received }: Receiver): Set<unknown> =>
  new Set(received.map(({ headers }) => headers['webhook-id']))

/** The shortest time between an attempt and the next one at the same delivery. */
async function shortestWait(endpoint: string): Promise<{ readonly waits: number; readonly ms: number }> {
  const { rows } = await db.query<{ waits: number; ms: number }>({
    text: `select count(gap)::int as waits, coalesce(min(gap), 0)::float8 as ms from (
        select extract(epoch from started_at - lag(recorded_at) over (partition by delivery_id order by id)) * 1000 as gap
        from leasehold.webhook_attempts where endpoint_id = $1) as gaps`,
    values: [endpoint],
  })
  return rows[0] ?? { waits: 0, ms: 0 }
}

it('healthy endpoints get all deliveries while the circuit of a failing one is open, and that one gets all of its deliveries when it recovers', async () => {
  const [first, second, down] = [await receiver(), await receiver(), await receiver(() => 500)]
  await addEndpoint(db, first.url)
  await addEndpoint(db, second.url)
  const { id } = await addEndpoint(db, down.url)
  await sendEvents()
  const [failures, delayMs] = [5, 300]
  await startDispatcher({
    schedule: [delayMs],
    circuitBreaker: { failureThreshold: failures, openMs: 500, maxOpenMs: 500 },
  })
  const deliveredToOthers = async (): Promise<number> => {
    const { rows } = await db.query<{ count: number }>({
      text: "select count(*)::int as count from leasehold.webhook_outbox where endpoint_id <> $1 and delivery_status = 'delivered'",
      values: [id],
    })
    return rows[0]?.count ?? 0
  }
  await expect.poll(deliveredToOthers, BOUND).toBe(2 * EVENTS)
  expect([idsOf(first).size, idsOf(second).size]).toEqual([EVENTS, EVENTS])
  expect([first.received.length, second.received.length]).toEqual([EVENTS, EVENTS])

  const attempts = down.received.length
  const { rows } = await db.query({
    text: `select failing_since is not null as failing, failures >= $2 as counted,
        ceil(extract(epoch from now() - failing_since) / 0.5)::int as probes
      from leasehold.webhook_endpoints where id = $1`,
    values: [id, failures],
  })
  const [circuit] = rows
  expect(circuit).toMatchObject({ failing: true, counted: true })
  // What was in flight when the circuit opened, and one probe at a time after that.
  const probes = Number(Reflect.get(circuit ?? {}, 'probes'))
  expect(attempts).toBeLessThanOrEqual(failures + 10 + probes + 1)

  // Every probe was another delivery: no delivery uses up its attempts while the circuit is open.
  expect(idsOf(down).size).toBe(down.received.length)
  expect(await statusesOf(id)).toEqual({ pending: EVENTS })

  down.answer(() => 204)
  await expect.poll(async () => statusesOf(id), BOUND).toEqual({ delivered: EVENTS })
  expect(idsOf(down)).toEqual(idsOf(first))
  const { waits, ms } = await shortestWait(id)
  expect(waits).toBe(down.received.length - EVENTS)
  expect(ms).toBeGreaterThanOrEqual(delayMs * 0.9)
})

describe('without a circuit breaker', () => {
  it('deliveries to an endpoint that stays down fail after the schedule, and a replay delivers all of them when it is back', async () => {
    const [healthy, down] = [await receiver(), await receiver(() => 503)]
    await addEndpoint(db, healthy.url)
    const { id } = await addEndpoint(db, down.url, { concurrency: 50 })
    const since = new Date()
    await sendEvents()
    await startDispatcher({ schedule: [100], circuitBreaker: { failureThreshold: 1_000_000 } })
    await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: EVENTS, failed: EVENTS })
    expect(down.received).toHaveLength(2 * EVENTS)
    const { waits, ms } = await shortestWait(id)
    expect(waits).toBe(EVENTS)
    expect(ms).toBeGreaterThanOrEqual(90)

    down.answer(() => 204)
    expect(await replay(db, { filter: { failedSince: since }, ...BY })).toMatchObject({
      matched: EVENTS,
      changed: EVENTS,
    })
    await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: 2 * EVENTS })
    expect(down.received).toHaveLength(3 * EVENTS)
    expect(idsOf(down)).toEqual(idsOf(healthy))
    expect(healthy.received).toHaveLength(EVENTS)
  })
})
