import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { openSession, useDatabase } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { sendAll, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint, forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import { retryNow } from './retry-now.ts'

const { url } = useDatabase()
const db = openDatabase({ url, maxConnections: 4 })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()
beforeEach(async () => forgetWebhooks(db))
afterAll(async () => db.close())

const WHO = { principal: 'ada', reason: 'the receiver is back' }

/** Pending deliveries that are due in an hour. */
async function makeWaiting(endpoint: string, count: number, attempts = 1): Promise<string[]> {
  const ids = await makeDeliveries(db, endpoint, count, { attempts })
  await db.query({
    text: "update leasehold.webhook_outbox set next_attempt_at = now() + interval '1 hour' where id = any ($1::bigint[])",
    values: [ids],
  })
  return ids
}

async function idsDue(): Promise<string[]> {
  const text = `select id::text as id from leasehold.webhook_outbox as d
where delivery_status = 'pending' and next_attempt_at <= now() order by d.id`
  return (await db.query<{ id: string }>({ text })).rows.map(({ id }) => id)
}

it('a delivery that waits for its next attempt is due at once; nothing else of it changes, and the audit says who and why', async () => {
  const [id = ''] = await makeWaiting(await makeEndpoint(db), 1, 3)
  const [before] = await deliveryStates(db)
  expect(await retryNow(db, { ids: [id], ...WHO })).toMatchObject({ matched: 1, changed: 1, skipped: [] })
  expect(await deliveryStates(db)).toEqual([{ ...before, due: expect.any(Number) }])
  expect(await idsDue()).toEqual([id])
  expect(await auditEntries(db)).toMatchObject([
    { principal: 'ada', action: 'webhooks.retry', target: id, details: { reason: WHO.reason, changed: 1 } },
  ])
})

it('a running dispatcher that would wait for an hour attempts the delivery, and the schedule goes on', async () => {
  let broken = true
  const target = await receiver(() => (broken ? 500 : 200))
  await addEndpoint(db, target.url)
  const { events } = await startDispatcher({
    schedule: [3_600_000, 3_600_000],
    settings: { pollMs: 3_600_000 },
  })
  const failed = events.next('settled')
  await sendAll(db, null)
  await failed
  broken = false
  const delivered = events.next('settled', ({ outcome }) => outcome === 'done')
  expect(await retryNow(db, { filter: { status: 'pending' }, ...WHO })).toMatchObject({ changed: 1 })
  await delivered
  expect(await deliveryStates(db)).toMatchObject([{ delivery_status: 'delivered', attempts: 1 }])
  expect(target.received).toHaveLength(2)
})

describe('by filter', () => {
  it('deliveries that were sent for a later time stay as they are; named by id or event id, they are due at once', async () => {
    const endpoint = await makeEndpoint(db)
    const [failed = ''] = await makeWaiting(endpoint, 1)
    const [later = ''] = await makeWaiting(endpoint, 1, 0)
    const filter = { endpoint }
    expect(await retryNow(db, { filter, dryRun: true })).toMatchObject({ matched: 1 })
    expect(await retryNow(db, { filter, ...WHO })).toMatchObject({ changed: 1 })
    expect(await idsDue()).toEqual([failed])
    const event = (await deliveryStates(db)).find(({ id }) => id === later)?.event_id ?? ''
    expect(await retryNow(db, { ids: [event], ...WHO })).toMatchObject({ changed: 1 })
    expect(await idsDue()).toEqual([failed, later])
  })

  it('deliveries that wait for a disabled endpoint, or for the next probe of a failing one, are counted', async () => {
    const [disabled, failing] = [await makeEndpoint(db), await makeEndpoint(db)]
    await makeWaiting(disabled, 2)
    await makeWaiting(failing, 3)
    await db.query({
      text: 'update leasehold.webhook_endpoints set enabled = false, disabled_at = now() where id = $1',
      values: [disabled],
    })
    await db.query({
      text: "update leasehold.webhook_endpoints set open_until = now() + interval '1 hour' where id = $1",
      values: [failing],
    })
    expect(await retryNow(db, { filter: { status: 'pending' }, ...WHO })).toMatchObject({
      changed: 5,
      counts: { endpointDisabled: 2, circuitOpen: 3 },
    })
  })

  it.each([
    ['failed deliveries', { status: 'failed' as const }],
    ['deliveries that failed since', { failedSince: new Date() }],
  ])('%s are refused', async (_, filter) => {
    await expect(retryNow(db, { filter, ...WHO })).rejects.toThrow('Only pending deliveries')
  })
})

describe('what is not changed', () => {
  it('what is due, in flight, finished or unknown is left alone, with the reason', async () => {
    const endpoint = await makeEndpoint(db)
    const [due = ''] = await makeDeliveries(db, endpoint, 1)
    const [inFlight = ''] = await makeDeliveries(db, endpoint, 1, { owner: 'host:1' })
    const [failed = ''] = await makeDeliveries(db, endpoint, 1, { status: 'failed' })
    const before = await deliveryStates(db)
    expect(await retryNow(db, { ids: [due, inFlight, failed, '99'], ...WHO })).toMatchObject({
      changed: 0,
      skipped: [
        { id: due, why: expect.stringMatching(/^it is due already/) },
        { id: inFlight, why: 'it is in flight: host:1 delivers it at this moment' },
        { id: failed, why: 'it is failed; a replay sends it once more' },
        { id: '99', why: 'there is no such delivery' },
      ],
    })
    expect(await deliveryStates(db)).toEqual(before)
    expect(await auditEntries(db)).toEqual([])
  })

  it('a delivery that a dispatcher claims at the same moment keeps its lease and its time', async () => {
    const [id = ''] = await makeWaiting(await makeEndpoint(db), 1)
    const session = await openSession(url)
    await session.query('begin')
    await session.query(
      `update leasehold.webhook_outbox set lease_owner = 'host:1', lease_until = now() + interval '1 hour',
  lease_token = lease_token + 1 where id = $1`,
      [id],
    )
    const retrying = retryNow(db, { ids: [id], ...WHO })
    const waiting =
      "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    await expect.poll(async () => (await db.query({ text: waiting })).rowCount, { timeout: 120_000 }).toBe(1)
    await session.query('commit')
    const before = await deliveryStates(db)
    expect(await retrying).toMatchObject({
      changed: 0,
      skipped: [{ id, why: expect.stringMatching(/in flight/) }],
    })
    expect(await deliveryStates(db)).toEqual(before)
  })
})
