/** Endpoints that take longer than a lease. They answer when the test tells them to. */
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { hold, type Receiver, useReceivers } from '../../../test/support/receiver.ts'
import {
  deliveries,
  type DeliveryRecord,
  sendAll,
  useDispatchers,
} from '../../../test/support/running-dispatcher.ts'
import { addEndpoint, forgetWebhooks } from '../../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { door } from '../../../test/support/running-worker.ts'
import { LEASE_MS } from '../../lease/timing.ts'
import { openDatabase } from '../../postgres/database.ts'
import { type AnyEvent, Events } from '../../worker/index.ts'
import { A_TOKEN } from '../../../test/support/tokens.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()
const settings = { leaseMs: 60_000, heartbeatMs: 400, reaperIntervalMs: 100 }
/**
 * For tests that wait until the lease would have expired. A loaded machine renews it in time. It may be held for three
 * times its length (RULE-020-051), so the tests have one lease to spare.
 */
const shortLease = { ...settings, leaseMs: 6_000 }
const BOUND = { timeout: 120_000, interval: 20 }

beforeEach(async () => forgetWebhooks(db))
afterAll(async () => db.close())

/** A receiver that answers when the test calls letGo(). */
async function slowReceiver(status = 204): Promise<Receiver & { letGo(): void }> {
  const slow = await receiver()
  return Object.assign(slow, hold(slow, status))
}

/** All events from now on. */
function record(events: Events): AnyEvent[] {
  const all: AnyEvent[] = []
  events.onAny((event) => all.push(event))
  return all
}

async function now(): Promise<number> {
  const { rows } = await db.query<{ now: Date }>({ text: 'select clock_timestamp() as now' })
  return rows[0]?.now.getTime() ?? 0
}

/**
 * Resolves when these leases would have expired by the database's clock, and those that the renewals had given them until
 * then as well: a renewal that ends after one lease is not enough.
 */
async function untilExpiredTwice(before: readonly DeliveryRecord[]): Promise<void> {
  const untilExpired = async (all: readonly DeliveryRecord[]): Promise<void> => {
    const last = Math.max(...all.map(({ lease_until: until }) => until?.getTime() ?? Infinity))
    await expect.poll(now, BOUND).toBeGreaterThan(last)
  }
  await untilExpired(before)
  await untilExpired(await deliveries(db))
}

async function onlyDelivery(): Promise<DeliveryRecord> {
  const [delivery] = await deliveries(db)
  if (delivery === undefined) throw new Error('there is no delivery')
  return delivery
}

describe('slow deliveries', () => {
  it('WH-FR-001-AC2, WH-NFR-002: a delivery that takes longer than its lease is renewed and delivered once, although a second dispatcher is running', async () => {
    const slow = await slowReceiver()
    await addEndpoint(db, slow.url)
    const all = record(new Events())
    const events = [new Events(), new Events()]
    for (const own of events) own.onAny((event) => all.push(event))
    for (const own of events) await startDispatcher({ settings: shortLease }, { events: own })
    await sendAll(db, null)
    await slow.reached(1)

    const claimed = await onlyDelivery()
    const seen = new Set<number>()
    await expect
      .poll(async () => {
        seen.add((await onlyDelivery()).lease_until?.getTime() ?? 0)
        return seen.size
      }, BOUND)
      .toBeGreaterThanOrEqual(3)
    const moves = [...seen]
    expect(moves).toEqual(moves.toSorted((a, b) => a - b))
    await untilExpiredTwice([claimed])
    expect(await onlyDelivery()).toMatchObject({ lease_owner: claimed.lease_owner, lease_token: A_TOKEN })
    expect(slow.received).toHaveLength(1)

    slow.letGo()
    await expect.poll(async () => (await onlyDelivery()).delivery_status, BOUND).toBe('delivered')
    expect(slow.received).toHaveLength(1)
    expect(await onlyDelivery()).toMatchObject({ attempts: 0, lease_token: A_TOKEN, lease_until: null })
    expect(all.filter(({ type }) => type === 'lost' || type === 'reaped' || type === 'fencedOff')).toEqual([])
  })

  it('WH-FR-001-AC1: a lease is renewed from the start of the delivery, even before the name of the receiver is resolved', async () => {
    const target = await receiver()
    const found = door()
    await addEndpoint(db, target.url.replace('127.0.0.1', 'receiver.test'))
    await sendAll(db, ...Array.from({ length: 10 }, () => null))
    const events = new Events()
    const all = record(events)
    await startDispatcher(
      {
        settings: shortLease,
        resolve: async () => {
          await found.opened
          return ['127.0.0.1']
        },
      },
      { events },
    )
    await expect.poll(() => all.filter(({ type }) => type === 'started').length, BOUND).toBe(10)
    const begun = await deliveries(db)
    // All of them are renewed.
    await expect
      .poll(async () => {
        const later = await deliveries(db)
        return later.filter(({ lease_until: until }, i) => Number(until) > Number(begun[i]?.lease_until))
          .length
      }, BOUND)
      .toBe(10)
    await untilExpiredTwice(begun)
    // They were renewed and not claimed a second time.
    expect(new Set((await deliveries(db)).map(({ lease_token: token }) => token))).toHaveProperty('size', 1)
    expect(target.received).toEqual([])
    found.open()
    await target.reached(10)
    await expect
      .poll(async () => (await deliveries(db)).map((one) => one.delivery_status), BOUND)
      .toEqual(begun.map(() => 'delivered'))
    expect(target.received).toHaveLength(10)
  })

  it('WH-FR-001-N: a slow delivery does not delay others, which are delivered between its renewals', async () => {
    const slow = await slowReceiver()
    const quick = await receiver()
    await addEndpoint(db, slow.url)
    await addEndpoint(db, quick.url)
    const events = new Events()
    const all = record(events)
    await startDispatcher({ settings }, { events })
    await sendAll(db, null)
    await quick.reached(1)
    for (let round = 2; round <= 4; round += 1) {
      await events.next('renewed')
      await sendAll(db, null)
      await quick.reached(round)
    }
    await slow.reached(4)
    expect(all.filter(({ type }) => type === 'lost')).toEqual([])
    slow.letGo()
  })
})

describe('WH-FR-001-AC3: renewal ends with the settlement', () => {
  it.each([
    ['delivered', 204, [10_000]],
    ['pending', 500, [3_600_000]],
    ['failed', 500, []],
  ] as const)(
    'a delivery that becomes %s (HTTP %i) is no longer renewed',
    async (status, answer, schedule) => {
      const ending = await slowReceiver(answer)
      const witness = await slowReceiver()
      const { id } = await addEndpoint(db, ending.url)
      await addEndpoint(db, witness.url)
      await sendAll(db, null)
      const events = new Events()
      await startDispatcher({ settings, schedule }, { events })
      await Promise.all([ending.reached(1), witness.reached(1)])
      await events.next('renewed', ({ count }) => count === 2)

      const settled = events.next('settled')
      ending.letGo()
      await settled
      const ended = async (): Promise<DeliveryRecord | undefined> =>
        (await deliveries(db)).find(({ endpoint_id: endpoint }) => endpoint === id)
      const after = await ended()
      expect(after).toMatchObject({ delivery_status: status, lease_owner: null, lease_until: null })
      // Heartbeats continue for the other delivery, and do not include this one. The first may have begun before.
      await events.next('renewed')
      for (let beat = 0; beat < 2; beat += 1) expect((await events.next('renewed')).count).toBe(1)
      expect(await ended()).toEqual(after)
      witness.letGo()
    },
  )

  it('a delivery that is skipped, because its endpoint was disabled after the claim, is no longer renewed', async () => {
    const [skipped, witness] = [await receiver(), await slowReceiver()]
    const { id } = await addEndpoint(db, skipped.url)
    await addEndpoint(db, witness.url, { tenant: 'witness' })
    await db.query({ text: "select leasehold.send_webhook('test.happened', '{}', tenant => 'witness')" })
    const events = new Events()
    await startDispatcher({ settings }, { events })
    await witness.reached(1)
    const settled = events.next('settled')
    // While the table of endpoints is locked, the delivery is in flight and waits for its endpoint.
    await db.transaction(async (tx) => {
      await tx.query({ text: 'lock table leasehold.webhook_endpoints in access exclusive mode' })
      await makeDeliveries(db, id, 1)
      await events.next('renewed', ({ count }) => count === 2)
      await tx.query({
        text: 'update leasehold.webhook_endpoints set enabled = false, disabled_at = now() where id = $1',
        values: [id],
      })
    })
    expect(await settled).toMatchObject({ outcome: 'postponed' })
    const ended = async (): Promise<DeliveryRecord | undefined> =>
      (await deliveries(db)).find(({ endpoint_id: endpoint }) => endpoint === id)
    const after = await ended()
    expect(after).toMatchObject({
      delivery_status: 'pending',
      attempts: 0,
      lease_owner: null,
      lease_until: null,
    })
    await events.next('renewed')
    for (let beat = 0; beat < 2; beat += 1) expect((await events.next('renewed')).count).toBe(1)
    expect(await ended()).toEqual(after)
    expect(skipped.received).toEqual([])
    witness.letGo()
  })

  it('without deliveries in flight there is no renewal', async () => {
    const target = await slowReceiver()
    await addEndpoint(db, target.url)
    await sendAll(db, null)
    const events = new Events()
    const all = record(events)
    const { runtime } = await startDispatcher({ settings }, { events })
    await events.next('renewed')
    const settled = events.next('settled')
    target.letGo()
    await settled
    const settledAt = all.length
    // Twenty runs of the reaper take longer than several heartbeats. One of these may have begun before the settlement.
    for (let run = 0; run < 20; run += 1) await events.next('reaperRan')
    await runtime.stop()
    expect(all.slice(settledAt).filter(({ type }) => type === 'renewed').length).toBeLessThanOrEqual(1)
  })
})

it('WH-NFR-001: one statement per heartbeat renews all deliveries in flight', async () => {
  const slow = await slowReceiver()
  // Less than the three quarters of the slots that one endpoint may use.
  const count = 150
  await addEndpoint(db, slow.url, { concurrency: count })
  await sendAll(db, ...Array.from({ length: count }, () => null))
  const events = new Events()
  await startDispatcher({ settings }, { events })
  await slow.reached(count)
  // The first may have begun before the last delivery was claimed.
  await events.next('renewed')
  // A trigger counts the rows of every statement that changes any.
  await db.query({
    text: `create table changes (rows int);
create function record_changes() returns trigger language plpgsql as
  'begin insert into public.changes select count(*) from changed having count(*) > 0; return null; end';
create trigger record_changes after update on leasehold.webhook_outbox
  referencing new table as changed for each statement execute function record_changes()`,
  })
  onTestFinished(async () => {
    await db.query({
      text: 'drop trigger record_changes on leasehold.webhook_outbox; drop function record_changes; drop table changes',
    })
  })
  await events.next('renewed')
  const before = (await changes()).length
  for (let beat = 0; beat < 3; beat += 1)
    expect(await events.next('renewed')).toMatchObject({ count, busy: 0 })
  // Every statement renewed all of them, so each heartbeat needed one.
  const statements = (await changes()).slice(before)
  expect(statements.length).toBeGreaterThanOrEqual(3)
  expect(new Set(statements)).toEqual(new Set([count]))
  slow.letGo()
})

async function changes(): Promise<number[]> {
  const { rows } = await db.query<{ rows: number }>({ text: 'select rows from changes' })
  return rows.map((each) => each.rows)
}

describe('WH-FR-002-AC2: lost leases', () => {
  it('a delivery that another owner has taken is neither renewed nor settled, and others continue', async () => {
    const [taken, other] = [await slowReceiver(), await slowReceiver()]
    const { id } = await addEndpoint(db, taken.url)
    await addEndpoint(db, other.url)
    await sendAll(db, null)
    const events = new Events()
    const all = record(events)
    await startDispatcher({ settings }, { events })
    await Promise.all([taken.reached(1), other.reached(1)])

    const lost = events.next('lost')
    await db.query({
      text: `update leasehold.webhook_outbox set lease_owner = 'another', lease_token = lease_token + 1,
        lease_until = now() + interval '1 hour' where endpoint_id = $1`,
      values: [id],
    })
    const image = async (): Promise<unknown> =>
      (await deliveries(db)).find(({ endpoint_id: endpoint }) => endpoint === id)
    const before = await image()
    expect(await lost).toMatchObject({ reason: 'taken' })
    for (let beat = 0; beat < 2; beat += 1) expect((await events.next('renewed')).count).toBe(1)

    // Its request was aborted, so its response is ignored.
    await expect.poll(() => all.some(({ type }) => type === 'aborted'), BOUND).toBe(true)
    taken.letGo()
    const settled = events.next('settled')
    other.letGo()
    expect((await settled).ids).toHaveLength(1)
    expect(await image()).toEqual(before)
  })
})

describe('the heartbeat interval', () => {
  it('WH-FR-003-AC1, WH-FR-003-AC2: the heartbeat interval is derived from the lease: above 0 and less than a third of it', async () => {
    const { runtime } = await startDispatcher()
    const { leaseMs, heartbeatMs } = runtime.worker('webhooks').settings
    expect({ leaseMs, heartbeatMs }).toEqual({
      leaseMs: LEASE_MS.externalCalls,
      heartbeatMs: LEASE_MS.externalCalls * 0.3,
    })
    const short = await startDispatcher({ settings: { leaseMs: 1_000 } })
    expect(short.runtime.worker('webhooks').settings.heartbeatMs).toBe(300)
  })

  it.each([
    [40_000, 'heartbeatMs is 40000, but must be less than a third of leaseMs (120000 / 3 = 40000)'],
    [0, 'heartbeatMs is 0, but must be a number of milliseconds from 25 to 86400000'],
    [-1, 'heartbeatMs is -1, but must be a number of milliseconds from 25 to 86400000'],
    [Number.NaN, 'heartbeatMs is NaN, but must be a number of milliseconds from 25 to 86400000'],
  ])(
    'WH-FR-003-AC3: a heartbeat interval of %d ms is refused at the start, and the error has the numbers',
    async (heartbeatMs, message) => {
      const refused: unknown = await startDispatcher({ settings: { heartbeatMs } }).catch(
        (error: unknown) => error,
      )
      expect(refused).toMatchObject({ code: 'SETTING_INVALID' })
      expect(String(refused)).toContain(message)
    },
  )
})
