import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { withBuckets } from '../../../test/support/buckets.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import type { Lease } from '../../lease/lease.ts'
import { openLeaseStore } from '../../lease/store.ts'
import { openDatabase } from '../../postgres/database.ts'
import { webhookTable } from '../table.ts'
import { listDeliveries, showDelivery } from './browse.ts'
import { countDeliveries, oldestPendingDelivery } from './counts.ts'
import { summariseEndpoints } from './endpoint-summary.ts'
import type { DeliveryFilter } from './filter.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

async function found(filter: DeliveryFilter): Promise<string[]> {
  return (await listDeliveries(db, filter)).deliveries.map(({ id }) => id)
}

describe('list', () => {
  it('list returns the newest first, page by page, each delivery on one page, also from several buckets', async () => {
    const ids = await makeDeliveries(db, await makeEndpoint(db), 25)
    await withBuckets(db, 3)
    await db.query({ text: 'update leasehold.webhook_outbox set bucket = id % 3' })
    const seen: string[] = []
    let before: string | undefined
    do {
      const page = await listDeliveries(db, {}, { limit: 7, before })
      seen.push(...page.deliveries.map(({ id }) => id))
      before = page.next ?? undefined
    } while (before !== undefined)
    expect(seen).toEqual(ids.toReversed())
  })

  it('the lists of a tenant merge its endpoints, the newest first, page by page, also from several buckets', async () => {
    const own = [await makeEndpoint(db, { tenant: 'acme' }), await makeEndpoint(db, { tenant: 'acme' })]
    const other = await makeEndpoint(db, { tenant: 'globex' })
    const ids: string[] = []
    for (let n = 0; n < 6; n += 1) {
      const options = { type: n % 2 === 0 ? 'even' : 'odd' }
      for (const endpoint of own) ids.push(...(await makeDeliveries(db, endpoint, 2, options)))
      await makeDeliveries(db, other, 3, options)
    }
    await withBuckets(db, 3)
    await db.query({ text: 'update leasehold.webhook_outbox set bucket = id % 3' })
    const read = async (filter: DeliveryFilter, maxScanned?: number): Promise<string[]> => {
      const seen: string[] = []
      let before: string | undefined
      do {
        const page = await listDeliveries(db, filter, { limit: 5, before, maxScanned })
        seen.push(...page.deliveries.map(({ id }) => id))
        before = page.next ?? undefined
      } while (before !== undefined)
      return seen
    }
    const newestFirst = ids.toReversed()
    expect(await read({ tenant: 'acme' })).toEqual(newestFirst)
    // Pages that end after a few rows have the same rows in all.
    const odd = await read({ tenant: 'acme', type: 'odd' })
    expect(odd).toHaveLength(12)
    expect(newestFirst).toEqual(expect.arrayContaining(odd))
    expect(await read({ tenant: 'acme', type: 'odd' }, 10)).toEqual(odd)
    expect(await read({ tenant: 'acme', endpoint: own[0] })).toHaveLength(12)
    expect(await read({ tenant: 'globex', endpoint: own[0] })).toEqual([])
    expect(await read({ tenant: 'nobody' })).toEqual([])
  })

  /** Endpoints of a tenant. The first has a half of the deliveries, the last ones have none. */
  async function makeManyEndpoints(tenant: string, endpoints: number, deliveries: number): Promise<string[]> {
    await db.query({
      text: `insert into leasehold.webhook_endpoints (id, tenant, url, secret)
select ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, $1, 'https://example.com', 'none' from generate_series(0, $2::int - 1) as n`,
      values: [tenant, endpoints],
    })
    const { rows } = await db.query<{ id: string }>({
      text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body)
select ('00000000-0000-7000-8000-' || lpad((case when n % 2 = 0 then 0 else n * 7919 % ($1::int - 3) end)::text, 12, '0'))::uuid,
  case when n % 50 = 0 then 'rare' else 'test' end, '{}'
from generate_series(1, $2::int) as n returning id::text as id`,
      values: [endpoints, deliveries],
    })
    return rows.map(({ id }) => id)
  }

  it.each([
    [150, 1],
    [150, 7],
    [150, 200],
    [1_000, 50],
  ])(
    'the lists of a tenant with %s endpoints have all of its deliveries, %s on a page',
    async (endpoints, limit) => {
      await makeDeliveries(db, await makeEndpoint(db), 3)
      const ids = await makeManyEndpoints('acme', endpoints, 400)
      await makeDeliveries(db, await makeEndpoint(db), 3)
      const read = async (filter: DeliveryFilter): Promise<string[]> => {
        const seen: string[] = []
        let before: string | undefined
        do {
          const page = await listDeliveries(db, filter, { limit, before, maxScanned: 1_000 })
          expect(page.deliveries.length).toBeLessThanOrEqual(limit)
          seen.push(...page.deliveries.map(({ id }) => id))
          before = page.next ?? undefined
        } while (before !== undefined)
        return seen
      }
      expect(await read({ tenant: 'acme' })).toEqual(ids.toReversed())
      expect(await read({ tenant: 'acme', type: 'rare' })).toEqual(
        ids.filter((_, n) => (n + 1) % 50 === 0).toReversed(),
      )
    },
  )

  it('a search in many endpoints, of which one has most deliveries, reads thousands of ids for a page', async () => {
    await makeManyEndpoints('acme', 500, 10_000)
    let pages = 0
    let before: string | undefined
    do {
      const page = await listDeliveries(
        db,
        { tenant: 'acme', type: 'nothing' },
        { before, maxScanned: 10_000 },
      )
      before = page.next ?? undefined
      pages += 1
    } while (before !== undefined)
    // By an equal part for each endpoint it would be four of the first one at a time.
    expect(pages).toBeLessThanOrEqual(6)
  })

  it('the lists of a tenant with more endpoints than are merged have all of its deliveries', async () => {
    const ids = await makeManyEndpoints('acme', 1_001, 200)
    await makeDeliveries(db, await makeEndpoint(db), 3)
    const { deliveries } = await listDeliveries(db, { tenant: 'acme' }, { limit: 1_000 })
    expect(deliveries.map(({ id }) => id)).toEqual(ids.toReversed())
  })

  it('list filters by endpoint, tenant, type, state, event, time and error', async () => {
    const one = await makeEndpoint(db)
    const acme = await makeEndpoint(db, { tenant: 'acme' })
    await makeDeliveries(db, one, 1, {
      status: 'failed',
      code: 'timeout',
      error: 'no answer',
      agoMs: 7_200_000,
    })
    await makeDeliveries(db, acme, 1, { status: 'delivered', type: 'order.sent' })
    await makeDeliveries(db, one, 1, { agoMs: 60_000 })
    await makeDeliveries(db, acme, 1, { status: 'failed', error: 'HTTP 500' })
    const { deliveries } = await listDeliveries(db)
    const ago = (ms: number): Date => new Date(Date.now() - ms)
    expect(await found({ endpoint: one })).toEqual(['3', '1'])
    expect(await found({ tenant: 'acme' })).toEqual(['4', '2'])
    expect(await found({ tenant: '' })).toEqual(['3', '1'])
    expect(await found({ type: 'order.sent' })).toEqual(['2'])
    expect(await found({ status: 'failed' })).toEqual(['4', '1'])
    expect(await found({ status: ['failed', 'pending'] })).toEqual(['4', '3', '1'])
    expect(await found({ ids: [deliveries[1]?.eventId ?? '', '1'] })).toEqual(['3', '1'])
    expect(await found({ from: ago(300_000), to: ago(30_000) })).toEqual(['3'])
    expect(await found({ failedSince: ago(3_600_000) })).toEqual(['4'])
    expect(await found({ error: 'TIMEOUT' })).toEqual(['1'])
    expect(await found({ error: 'no answer' })).toEqual(['1'])
    expect(await found({ status: 'failed', tenant: 'acme', error: 'timeout' })).toEqual([])
  })

  it('list says where each delivery goes, also when the endpoint was deleted', async () => {
    const one = await makeEndpoint(db, { url: 'https://one.example/', tenant: 'acme' })
    await makeDeliveries(db, one, 1, { owner: 'a dispatcher' })
    expect((await listDeliveries(db)).deliveries).toMatchObject([
      {
        endpointId: one,
        endpointUrl: 'https://one.example/',
        tenant: 'acme',
        leaseOwner: 'a dispatcher',
        token: 1n,
      },
    ])
    await db.query({ text: 'delete from leasehold.webhook_endpoints' })
    expect((await listDeliveries(db)).deliveries).toMatchObject([
      { endpointId: one, endpointUrl: null, tenant: null },
    ])
  })

  it.each<[DeliveryFilter, object, RegExp]>([
    [{ endpoint: 'x' }, {}, /endpoint is "x"/],
    [{ ids: ['x'] }, {}, /id is "x"/],
    [{ status: [] }, {}, /status is \[\].*pending, delivered, failed/],
    [{ from: new Date(2), to: new Date(1) }, {}, /to is .*later than from/],
    [{ type: '' }, {}, /type is ""/],
    [{ status: 'pending', failedSince: new Date() }, {}, /failedSince is .*pending/],
    [{}, { limit: 0 }, /limit is 0.*1 to 1000/],
    [{}, { before: 'x' }, /before is "x"/],
  ])('%j %j is refused', async (filter, options, message) => {
    await expect(listDeliveries(db, filter, options)).rejects.toThrow(message)
  })

  it('a query that takes too long is stopped, and the error says what to do', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 150_000)
    await expect(listDeliveries(db, { error: 'never there' }, { timeoutMs: 1 })).rejects.toThrow(
      /Listing the deliveries was stopped after 1 ms.*Choose fewer/,
    )
  })
})

describe('show', () => {
  it('show returns the body byte for byte, and every attempt, the newest last', async () => {
    const endpoint = await makeEndpoint(db)
    const [id = ''] = await makeDeliveries(db, endpoint, 1)
    const store = await openLeaseStore(db, webhookTable(), { owner: 'x' })
    const claim = async (): Promise<Lease[]> => {
      const { claimed } = await store.claim({
        limit: 1,
        leaseMs: 60_000,
        groups: [{ group: endpoint, room: 1 }],
      })
      return claimed.map(({ lease }) => lease)
    }
    const failed = {
      duration_ms: 12,
      status: 500,
      code: 'http500',
      error: 'HTTP 500',
      response: 'oops',
      delay_ms: 0,
    }
    await store.settle('retry', await claim(), { args: [failed] })
    await claim()
    await db.query({ text: 'update leasehold.webhook_outbox set lease_until = now()' })
    await store.reap()
    const delivered = { duration_ms: 5, status: 200, code: null, error: null, response: 'ok' }
    await store.settle('done', await claim(), { args: [delivered] })
    const shown = await showDelivery(db, id)
    const third = shown.token
    expect(shown).toMatchObject({
      id,
      status: 'delivered',
      attempts: 2,
      expiries: 1,
      body: '{"n":1}',
      headers: {},
      token: expect.any(BigInt),
      waitsFor: null,
      history: [
        {
          attempt: 1,
          token: third - 2n,
          durationMs: 12,
          status: 500,
          errorCode: 'http500',
          response: 'oops',
        },
        { attempt: 2, token: third - 1n, startedAt: null, status: null, errorCode: 'leaseExpired' },
        { attempt: 3, token: third, durationMs: 5, status: 200, errorCode: null, response: 'ok' },
      ],
    })
  })

  it('show says which delivery of the same ordering key has to be finished first', async () => {
    const endpoint = await makeEndpoint(db, { ordered: true })
    await makeDeliveries(db, endpoint, 2, { key: `'k'`, attempts: 2 })
    expect((await showDelivery(db, '2')).waitsFor).toMatchObject({ id: '1', attempts: 2, inFlight: false })
    expect((await showDelivery(db, '1')).waitsFor).toBeNull()
    // A delivery that is in flight comes first, also when one with a lower id was committed late.
    await makeDeliveries(db, endpoint, 1, { key: `'other'`, owner: 'x' })
    await db.query({ text: "update leasehold.webhook_outbox set ordering_key = 'k' where id = 3" })
    expect((await showDelivery(db, '1')).waitsFor).toMatchObject({ id: '3', inFlight: true })
  })

  it('show finds a delivery by event id if there is one, and names the numbers of several', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 1)
    const { eventId } = await showDelivery(db, '1')
    expect(await showDelivery(db, eventId.toUpperCase())).toMatchObject({ id: '1' })
    await makeDeliveries(db, await makeEndpoint(db), 1)
    await db.query({ text: 'update leasehold.webhook_outbox set event_id = $1', values: [eventId] })
    await expect(showDelivery(db, eventId)).rejects.toThrow(/sent to 2 endpoints\..*its deliveries: 1, 2\./)
  })

  it('one that is not there is an error with a code', async () => {
    await expect(showDelivery(db, '99')).rejects.toMatchObject({ code: 'DELIVERY_NOT_FOUND' })
    await expect(showDelivery(db, 'x')).rejects.toThrow(/id is "x"/)
  })
})

describe('counts', () => {
  it('the counts are by state, with those in flight apart, and the one that has been due for the longest time', async () => {
    const one = await makeEndpoint(db)
    const other = await makeEndpoint(db, { ordered: true })
    await makeDeliveries(db, one, 3, { owner: 'x', agoMs: 900_000 })
    await makeDeliveries(db, one, 2, { agoMs: 60_000 })
    const [oldest] = await makeDeliveries(db, other, 1, { key: `'k'`, agoMs: 600_000 })
    // These wait for it.
    await makeDeliveries(db, other, 4, { key: `'k'`, agoMs: 700_000 })
    await makeDeliveries(db, one, 5, { status: 'delivered' })
    await makeDeliveries(db, one, 6, { status: 'failed' })
    const exact = (count: number): object => ({ count, exact: true })
    expect(await countDeliveries(db)).toEqual({
      pending: exact(7),
      inFlight: exact(3),
      delivered: exact(5),
      failed: exact(6),
    })
    const found = await oldestPendingDelivery(db)
    expect(found).toMatchObject({ id: oldest, endpointId: other })
    expect(found?.waitingMs).toBeGreaterThan(599_000)
    expect(found?.waitingMs).toBeLessThan(700_000)
  })

  it('what is not due yet does not wait', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 1, { agoMs: -60_000 })
    expect(await oldestPendingDelivery(db)).toBeUndefined()
    expect(await countDeliveries(db)).toMatchObject({ pending: { count: 1 } })
  })
})

describe('endpoints at a glance', () => {
  it('endpoints that receive nothing come first, with the reason, and quiet ones are left out', async () => {
    await makeEndpoint(db, { url: 'https://quiet.example/' })
    const busy = await makeEndpoint(db, { url: 'https://busy.example/', ordered: true })
    const disabled = await makeEndpoint(db, {
      url: 'https://disabled.example/',
      disabledReason: 'answered 410',
    })
    const open = await makeEndpoint(db, { url: 'https://open.example/' })
    const deleted = await makeEndpoint(db)
    await db.query({
      text: `update leasehold.webhook_endpoints set failures = 5, failing_since = now(), open_until = now() + interval '1 minute'
where id = $1`,
      values: [open],
    })
    await makeDeliveries(db, busy, 2, { key: `'k'` })
    await makeDeliveries(db, busy, 1)
    await makeDeliveries(db, busy, 2, { expiries: 2 })
    await makeDeliveries(db, busy, 4, { status: 'failed' })
    await makeDeliveries(db, disabled, 1_200)
    await makeDeliveries(db, deleted, 1)
    await db.query({ text: 'delete from leasehold.webhook_endpoints where id = $1', values: [deleted] })
    const { endpoints, more } = await summariseEndpoints(db)
    expect(more).toBe(false)
    expect(endpoints).toMatchObject([
      { id: deleted, url: null, state: 'deleted', pending: 1, failed: 0 },
      { id: disabled, state: 'disabled', reason: 'answered 410', since: expect.any(Date), pending: 1_000 },
      { id: open, state: 'open', openUntil: expect.any(Date), pending: 0 },
      { id: busy, url: 'https://busy.example/', state: 'ok', pending: 5, failed: 4 },
    ])
    expect(endpoints).toHaveLength(4)
    expect(await summariseEndpoints(db, { limit: 2 })).toMatchObject({ more: true })
    await db.query({
      text: "update leasehold.webhook_endpoints set open_until = now() - interval '1 second'",
    })
    expect((await summariseEndpoints(db)).endpoints[2]).toMatchObject({ id: open, state: 'probing' })
  })
})
