import { once } from 'node:events'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { withBuckets } from '../../../test/support/buckets.ts'
import { useDatabase, openSession } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { deliveryStates, idsIn, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { replay, type ReplayOptions } from './replay.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

const WHO = { principal: 'ada', reason: 'it is back' }
const FAILED = { status: 'failed' } as const
const BOTH = ['failed', 'delivered'] as const

it('an event with more deliveries than a page has is found, and so are the deliveries named with it', async () => {
  const endpoint = await makeEndpoint(db)
  const [first = ''] = await makeDeliveries(db, endpoint, 1, { status: 'delivered' })
  const { rows } = await db.query<{ eventId: string }>({
    text: `with event as (select leasehold.new_event_id() as id),
  endpoints as (
    insert into leasehold.webhook_endpoints (url, secret)
    select 'https://' || n || '.example/', 'x' from generate_series(1, 1_200) as n returning id
  )
insert into leasehold.webhook_outbox (endpoint_id, event_id, event_type, body)
select endpoints.id, event.id, 'order.paid', '{}' from endpoints, event returning event_id as "eventId"`,
  })
  const event = rows[0]?.eventId ?? ''
  const named = [first, event, '99999']
  const skipped = [
    { id: first, why: 'it was delivered; name the status delivered to send it once more' },
    { id: event, why: expect.stringMatching(/^it is pending, and will be attempted anyway;/) },
    { id: '99999', why: 'there is no such delivery' },
  ]
  expect(await replay(db, { ids: named, ...WHO })).toMatchObject({ changed: 0, skipped })
  // Of an event, one delivery that is replayed is enough: here the one with the smallest id.
  await db.query({
    text: `update leasehold.webhook_outbox set delivery_status = 'failed', failed_at = now()
where id = (select min(id) from leasehold.webhook_outbox where event_id = $1)`,
    values: [event],
  })
  expect(await replay(db, { ids: named, ...WHO })).toMatchObject({
    changed: 1,
    skipped: [{ id: first }, { id: '99999' }],
  })
})

describe('what is replayed', () => {
  it('a failed delivery becomes pending: attempts and errors are reset, event id and token never', async () => {
    const endpoint = await makeEndpoint(db)
    const [id = ''] = await makeDeliveries(db, endpoint, 1, {
      status: 'failed',
      attempts: 10,
      code: 'httpStatus',
      error: 'HTTP 500',
      agoMs: 60_000,
    })
    const [before] = await deliveryStates(db)
    expect(await replay(db, { ids: [id], ...WHO })).toMatchObject({
      matched: 1,
      changed: 1,
      counts: { endpointDeleted: 0, endpointDisabled: 0 },
      finished: true,
    })
    const [after] = await deliveryStates(db)
    expect(after).toEqual({
      ...before,
      delivery_status: 'pending',
      attempts: 0,
      expiries: 0,
      failed_at: null,
      last_error_code: null,
      last_error: null,
      due: expect.any(Number),
    })
    expect(after?.lease_token).toBe('1')
    expect(after?.due).toBeGreaterThan(before?.due ?? Infinity)
    const { rows: attempts } = await db.query({ text: 'select from leasehold.webhook_attempts' })
    expect(attempts).toEqual([])
  })

  it('pending deliveries and those in flight are not replayed, and delivered ones only on request', async () => {
    const endpoint = await makeEndpoint(db)
    const ids = [
      ...(await makeDeliveries(db, endpoint, 1)),
      ...(await makeDeliveries(db, endpoint, 1, { owner: 'a dispatcher' })),
      ...(await makeDeliveries(db, endpoint, 1, { status: 'delivered' })),
    ]
    const before = await deliveryStates(db)
    expect(await replay(db, { ids, ...WHO })).toMatchObject({ matched: 0, changed: 0 })
    expect(await deliveryStates(db)).toEqual(before)
    expect(await auditEntries(db)).toEqual([])
    expect(await replay(db, { ids, filter: { status: 'delivered' }, ...WHO })).toMatchObject({ changed: 1 })
    expect((await deliveryStates(db))[2]).toMatchObject({ delivery_status: 'pending', delivered_at: null })
  })

  it('an event id means all deliveries of the event, and the filter as well', async () => {
    const one = await makeEndpoint(db)
    const other = await makeEndpoint(db)
    await makeDeliveries(db, one, 1, FAILED)
    await makeDeliveries(db, other, 1, FAILED)
    const { rows: events } = await db.query<{ event_id: string }>({
      text: `update leasehold.webhook_outbox set event_id = (select event_id from leasehold.webhook_outbox where id = 1)
returning event_id`,
    })
    const ids = [events[0]?.event_id ?? '']
    expect(await replay(db, { ids, dryRun: true })).toMatchObject({ matched: 2 })
    expect(await replay(db, { ids, filter: { endpoint: other }, ...WHO })).toMatchObject({ changed: 1 })
    expect(await idsIn(db, 'pending')).toEqual(['2'])
  })

  it('deliveries whose endpoint was deleted stay, and are counted; those of a disabled one wait', async () => {
    const disabled = await makeEndpoint(db, { disabledReason: 'answered 410' })
    const deleted = await makeEndpoint(db)
    await makeDeliveries(db, deleted, 3, FAILED)
    await makeDeliveries(db, disabled, 2, FAILED)
    await db.query({ text: 'delete from leasehold.webhook_endpoints where id = $1', values: [deleted] })
    const expected = { matched: 2, counts: { endpointDeleted: 3, endpointDisabled: 2 } }
    expect(await replay(db, { filter: FAILED, dryRun: true })).toMatchObject(expected)
    expect(await replay(db, { filter: FAILED, ...WHO })).toMatchObject({ ...expected, changed: 2 })
    expect(await idsIn(db, 'failed')).toEqual(['1', '2', '3'])
  })

  it.each([
    ['type and state', { type: 'order.paid', status: BOTH }, ['1', '2', '3', '6']],
    ['tenant', { tenant: 'acme' }, ['4', '5']],
    [
      'time range',
      { from: new Date(Date.now() - 5_000_000), to: new Date(Date.now() - 1_000_000) },
      ['1', '2', '3'],
    ],
    ['failed since', { failedSince: new Date(Date.now() - 1_000_000) }, ['4', '5']],
    ['error text, in any case and with any sign', { error: '100% OF_' }, ['1', '2', '3']],
    ['error code', { error: 'timeout' }, ['4', '5']],
    ['both states', { status: BOTH }, ['1', '2', '3', '4', '5', '6']],
  ])('a filter by %s replays the matching deliveries and no others', async (_, filter, expected) => {
    const one = await makeEndpoint(db)
    const acme = await makeEndpoint(db, { tenant: 'acme' })
    await makeDeliveries(db, one, 3, { ...FAILED, error: 'lost 100% of_it', agoMs: 3_600_000 })
    await makeDeliveries(db, acme, 2, { ...FAILED, type: 'order.sent', code: 'timeout' })
    await makeDeliveries(db, one, 1, { status: 'delivered' })
    expect(await replay(db, { filter, dryRun: true })).toMatchObject({ matched: expected.length })
    expect(await replay(db, { filter, ...WHO })).toMatchObject({ changed: expected.length })
    expect(await idsIn(db, 'pending')).toEqual(expected)
  })

  it('at most the limit is replayed, those that failed first come first', async () => {
    const endpoint = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 2, FAILED)
    await makeDeliveries(db, endpoint, 2, { ...FAILED, agoMs: 60_000 })
    expect(await replay(db, { filter: FAILED, limit: 3, ...WHO })).toMatchObject({ matched: 3, changed: 3 })
    expect(await idsIn(db, 'pending')).toEqual(['1', '3', '4'])
  })

  it('a replay wakes the dispatchers', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 1, FAILED)
    const client = await openSession(database.url)
    await client.query('listen leasehold_wake')
    const heard = once(client, 'notification')
    await replay(db, { filter: FAILED, ...WHO })
    expect(await heard).toMatchObject([{ payload: 'webhooks' }])
  })

  it('deliveries in every bucket are replayed', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 4, FAILED)
    await withBuckets(db, 3)
    await db.query({ text: 'update leasehold.webhook_outbox set bucket = id % 3' })
    expect(await replay(db, { filter: FAILED, ...WHO })).toMatchObject({ matched: 4, changed: 4 })
    expect(await idsIn(db, 'pending')).toHaveLength(4)
  })
})

it('a delivery that fails once more while the replay runs is not replayed a second time', async () => {
  const endpoint = await makeEndpoint(db)
  await makeDeliveries(db, endpoint, 2_500, FAILED)
  const failOnceMore = async (): Promise<void> => {
    await db.query({
      text: `update leasehold.webhook_outbox set delivery_status = 'failed', failed_at = now(), last_error = 'once more'
where delivery_status = 'pending'`,
    })
  }
  const done = await replay(db, { filter: FAILED, ...WHO, onProgress: failOnceMore })
  expect(done).toMatchObject({ matched: 2_500, changed: 2_500, finished: true })
  expect((await deliveryStates(db)).filter(({ last_error }) => last_error === 'once more')).toHaveLength(
    2_500,
  )
})

it('a rare match far down a large table is found by statements that each read a bounded number of rows', async () => {
  const endpoint = await makeEndpoint(db)
  await makeDeliveries(db, endpoint, 55_000, { status: 'delivered' })
  const [rare = ''] = await makeDeliveries(db, endpoint, 1, { status: 'delivered', type: 'rare' })
  const filter = { status: 'delivered', type: 'rare' } as const
  expect(await replay(db, { filter, dryRun: true })).toMatchObject({ matched: 1 })
  expect(await replay(db, { filter, ...WHO })).toMatchObject({ changed: 1 })
  expect(await idsIn(db, 'pending')).toEqual([rare])
})

it('a replay that is stopped before it begins changes nothing', async () => {
  await makeDeliveries(db, await makeEndpoint(db), 1, FAILED)
  const signal = AbortSignal.abort()
  expect(await replay(db, { filter: FAILED, ...WHO, signal })).toMatchObject({
    finished: false,
    changed: 0,
  })
  expect(await idsIn(db, 'failed')).toHaveLength(1)
})

describe('a replay is refused, and changes nothing,', () => {
  it.each<[string, ReplayOptions, RegExp]>([
    ['with nothing to choose by', { ...WHO }, /filter is \{\}.*Give ids/],
    ['without a reason', { filter: FAILED, principal: 'ada' }, /reason is missing.*Say why/],
    ['without a principal', { filter: FAILED, reason: 'x', principal: ' ' }, /principal is " ".*Say who/],
    [
      'for what is pending',
      { filter: { status: 'pending' }, ...WHO },
      /status is "pending".*will be attempted anyway/,
    ],
    ['at a rate of nothing', { filter: FAILED, rate: 0, ...WHO }, /rate is 0.*per second/],
    ['with a limit of half', { filter: FAILED, limit: 0.5, ...WHO }, /limit is 0.5/],
    ['for no endpoint', { filter: { endpoint: 'x' }, ...WHO }, /endpoint is "x".*uuid.*endpoints list/],
    ['for no delivery', { ids: ['-1'], ...WHO }, /id is "-1".*number of a delivery/],
    ['for a moment that is none', { filter: { failedSince: new Date('x') }, ...WHO }, /failedSince is/],
    [
      'for those that were delivered and have failed',
      { filter: { status: 'delivered', failedSince: new Date() }, ...WHO },
      /failedSince is .*only failed deliveries have/,
    ],
    ['with a zero character', { filter: { type: 'a\0' }, ...WHO }, /type is .*Give a text/],
  ])('%s', async (_, options, message) => {
    await makeDeliveries(db, await makeEndpoint(db), 1, FAILED)
    const before = await deliveryStates(db)
    await expect(replay(db, options)).rejects.toThrow(message)
    expect(await deliveryStates(db)).toEqual(before)
  })
})
