import { describe, expect, it, onTestFinished } from 'vitest'
import { OTHER_TENANT, TENANT, useApi } from '../../../../test/support/api.ts'
import { useReceivers } from '../../../../test/support/receiver.ts'
import {
  clientAddress,
  type RouteCase,
  testAllHaveCases,
  testRoute,
} from '../../../../test/support/route-cases.ts'
import { useDispatchers } from '../../../../test/support/running-dispatcher.ts'
import { makeEndpoint, SECRET_KEY } from '../../../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../../../test/support/webhook-rows.ts'
import { LOOPBACK } from '../../../webhooks/network/policy.ts'
import { verify } from '../../../webhooks/signing/verify.ts'
import { WEBHOOKS } from './webhooks.ts'

const api = useApi({ clientAddress, webhooks: { secretKey: SECRET_KEY, network: { allow: LOOPBACK } } })
const { db, send } = api
const receiver = useReceivers()
const startDispatcher = useDispatchers(api.url)

const URL_GIVEN = 'https://receiver.example/hook'
const UNKNOWN = '0190b3a0-0000-7000-8000-00000000000a'
const REASON = { reason: 'test' }
const NO_REASON = { body: {}, field: 'body.reason' }

async function endpoint(tenant = TENANT): Promise<string> {
  const created = await send('POST', '/webhooks/endpoints', { body: { url: URL_GIVEN, tenant } })
  expect(created.status).toBe(201)
  return created.body.id
}

async function delivery(status: 'pending' | 'failed' | 'delivered', dueInMs = 0): Promise<string> {
  const [id = ''] = await makeDeliveries(db, await endpoint(), 1, { status })
  if (dueInMs > 0)
    await db.query({
      text: `update leasehold.webhook_outbox set next_attempt_at = now() + $2 * interval '1 millisecond' where id = $1`,
      values: [id, dueInMs],
    })
  return id
}

async function everything(): Promise<unknown> {
  const { rows } = await db.query({
    text: `select (select jsonb_agg(to_jsonb(e) order by e.id) from leasehold.webhook_endpoints as e) as endpoints,
  (select jsonb_agg(to_jsonb(d) order by d.id) from leasehold.webhook_outbox as d) as deliveries,
  (select count(*) from leasehold.audit) as audit`,
  })
  return rows
}

/** Waits for a bulk change of the background. */
async function changed(id: string, key: 'operate' | 'tenantOperate' = 'operate') {
  await expect
    .poll(async () => (await send('GET', `/changes/${id}`, { key })).body.state, { timeout: 30_000 })
    .toBe('finished')
  return (await send('GET', `/changes/${id}`, { key })).body
}

/** A delivery with this history: how many minutes ago each attempt was recorded, its error code, and its duration. */
async function attempted(
  endpointId: string,
  attempts: readonly (readonly [number, string | null, number | null])[],
): Promise<string> {
  const [id = ''] = await makeDeliveries(db, endpointId, 1, { status: 'delivered' })
  await db.query({
    text: `update leasehold.webhook_outbox set history = (
  select jsonb_agg(jsonb_build_object('attempt', n, 'recorded_at', now() - ago * interval '1 minute', 'error_code', code,
    'duration_ms', ms, 'status', case when code = 'status' then 500 end) order by n)
  from unnest($2::float8[], $3::text[], $4::int[]) with ordinality as a (ago, code, ms, n)
) where bucket = 0 and id = $1`,
    values: [
      id,
      attempts.map(([ago]) => ago),
      attempts.map(([, code]) => code),
      attempts.map(([, , ms]) => ms),
    ],
  })
  return id
}

function oneDelivery(
  verb: 'replay' | 'retry' | 'cancel',
  from: () => Promise<string>,
  to: object,
  refused: { readonly from: () => Promise<string>; readonly detail: string },
): RouteCase {
  return {
    route: `POST /webhooks/deliveries/{id}/${verb}`,
    happy: async () => ({
      path: `/webhooks/deliveries/${await from()}/${verb}`,
      body: REASON,
      answer: to,
    }),
    invalid: async () => [
      NO_REASON,
      { body: { reason: '' }, field: 'body.reason' },
      { path: `/webhooks/deliveries/one/${verb}`, field: 'path.id' },
    ],
    missing: `/webhooks/deliveries/999999/${verb}`,
    conflict: async () => ({
      path: `/webhooks/deliveries/${await refused.from()}/${verb}`,
      body: REASON,
      detail: refused.detail,
    }),
  }
}

const BAD_PAGES = [
  { query: 'limit=0', field: 'query.limit' },
  { query: 'limit=x', field: 'query.limit' },
  { query: 'cursor=x', field: 'query.cursor' },
  { query: 'unknown=1', field: 'query' },
]
const atPath =
  (path: string, wrong: readonly { readonly query: string; readonly field: string }[]) => async () =>
    wrong.map(({ query, field }) => ({ path: `${path}?${query}`, field }))

const CASES: readonly RouteCase[] = [
  {
    route: 'GET /webhooks/endpoints/{id}/health',
    async happy() {
      const id = await endpoint()
      const deliveryId = await attempted(id, [
        [0, 'status', 30],
        [0, null, 10],
      ])
      const answer = { id, failures: [{ deliveryId, status: 500, errorCode: 'status' }], partial: false }
      return { path: `/webhooks/endpoints/${id}/health`, answer }
    },
    invalid: async () => [{ path: '/webhooks/endpoints/one/health', field: 'path.id' }],
    missing: `/webhooks/endpoints/${UNKNOWN}/health`,
  },
  {
    route: 'GET /webhooks/sparklines',
    async happy() {
      const ids = [await endpoint(), await endpoint()]
      const items = ids.map((id) => ({ id, delivered: Array(24).fill(0) }))
      return {
        path: `/webhooks/sparklines?endpoint=${ids.join('&endpoint=')}&endpoint=${UNKNOWN}`,
        answer: { items, partial: false },
      }
    },
    invalid: async () => [
      { path: '/webhooks/sparklines?endpoint=one', field: 'query.endpoint' },
      {
        path: `/webhooks/sparklines?${Array(51).fill(`endpoint=${UNKNOWN}`).join('&')}`,
        field: 'query.endpoint',
      },
    ],
  },
  {
    route: 'GET /webhooks/endpoints',
    async happy() {
      const id = await endpoint()
      return {
        path: `/webhooks/endpoints?tenant=${TENANT}&enabled=true&eventType=order.paid&limit=1000`,
        answer: {
          items: expect.arrayContaining([expect.objectContaining({ id, url: URL_GIVEN })]),
          next: null,
        },
      }
    },
    invalid: atPath('/webhooks/endpoints', [
      ...BAD_PAGES,
      { query: 'enabled=maybe', field: 'query.enabled' },
    ]),
  },
  {
    route: 'POST /webhooks/endpoints',
    happy: async () => ({
      path: '/webhooks/endpoints',
      body: {
        url: URL_GIVEN,
        tenant: TENANT,
        eventTypes: ['order.*'],
        headers: { authorization: 'secret' },
        ratePerSecond: 5,
        signing: 'v1a',
        ...REASON,
      },
      answer: {
        tenant: TENANT,
        headers: { authorization: '***' },
        secret: expect.stringMatching(/^whsk_/),
        publicKey: expect.stringMatching(/^whpk_/),
      },
    }),
    invalid: async () => [
      { body: {}, field: 'body.url' },
      { body: { url: 5 }, field: 'body.url' },
      { body: { url: 'ftp://a.example' }, field: 'url' },
      { body: { url: 'https://10.0.0.1/' }, field: 'url' },
      { body: { url: URL_GIVEN, eventTypes: ['a*b'] }, field: 'eventTypes' },
      { body: { url: URL_GIVEN, timeoutMs: 900_000 }, field: 'timeoutMs' },
      { body: { url: URL_GIVEN, secret: 'short' }, field: 'secret' },
      { body: { url: URL_GIVEN, headers: { host: 'x' } }, field: 'headers' },
      { body: { url: URL_GIVEN, unknown: 1 }, field: 'body' },
      { body: { url: URL_GIVEN, signing: 'v2' }, field: 'body.signing' },
      { body: '{', field: 'body' },
    ],
  },
  {
    route: 'GET /webhooks/endpoints/{id}',
    async happy() {
      const id = await endpoint()
      return { path: `/webhooks/endpoints/${id}`, answer: { id, publicKey: null } }
    },
    invalid: async () => [{ path: '/webhooks/endpoints/1', field: 'path.id' }],
    missing: `/webhooks/endpoints/${UNKNOWN}`,
  },
  {
    route: 'PATCH /webhooks/endpoints/{id}',
    happy: async () => ({
      path: `/webhooks/endpoints/${await endpoint()}`,
      body: { description: 'ours', concurrency: 3, ratePerSecond: null },
      answer: { description: 'ours', concurrency: 3, ratePerSecond: null },
    }),
    invalid: async () => [
      { body: { tenant: OTHER_TENANT }, field: 'body' },
      { body: { secret: 'x' }, field: 'body' },
      { body: { concurrency: 'many' }, field: 'body.concurrency' },
      { body: { concurrency: 10_001 }, field: 'concurrency' },
      { body: { url: 'http://user@[::ffff:10.0.0.1]' }, field: 'url' },
    ],
    missing: `/webhooks/endpoints/${UNKNOWN}`,
  },
  {
    route: 'DELETE /webhooks/endpoints/{id}',
    async happy() {
      const id = await endpoint()
      return {
        path: `/webhooks/endpoints/${id}?reason=obsolete`,
        async afterwards() {
          expect((await send('GET', `/webhooks/endpoints/${id}`)).status).toBe(404)
          const { body } = await send('GET', `/audit?target=${id}&action=webhooks.endpoint.delete`)
          expect(body.items).toMatchObject([{ principal: 'operate', details: { reason: 'obsolete' } }])
        },
      }
    },
    invalid: async () => [{ path: `/webhooks/endpoints/${UNKNOWN}?reason=`, field: 'query.reason' }],
    missing: `/webhooks/endpoints/${UNKNOWN}`,
  },
  ...(['enable', 'disable'] as const).map((verb): RouteCase => ({
    route: `POST /webhooks/endpoints/{id}/${verb}`,
    happy: async () => ({
      path: `/webhooks/endpoints/${await endpoint()}/${verb}`,
      body: REASON,
      answer: { enabled: verb === 'enable', disabledReason: verb === 'enable' ? null : 'test' },
    }),
    invalid: async () => [NO_REASON],
    missing: `/webhooks/endpoints/${UNKNOWN}/${verb}`,
  })),
  {
    route: 'POST /webhooks/endpoints/{id}/rotate-secret',
    happy: async () => ({
      path: `/webhooks/endpoints/${await endpoint()}/rotate-secret`,
      body: { keepOldForMs: 60_000 },
      answer: { secret: expect.stringMatching(/^whsec_/), previousSecretUntil: expect.any(String) },
    }),
    invalid: async () => [
      { body: { keepOldForMs: -1 }, field: 'body.keepOldForMs' },
      { body: { keepOldForMs: 1e12 }, field: 'keepOldForMs' },
      { body: { secret: 'whsk_wrong' }, field: 'secret' },
    ],
    missing: `/webhooks/endpoints/${UNKNOWN}/rotate-secret`,
  },
  {
    route: 'POST /webhooks/endpoints/{id}/test',
    async happy() {
      const id = await endpoint()
      return {
        path: `/webhooks/endpoints/${id}/test`,
        body: REASON,
        answer: { endpointId: id, type: 'webhook.test', status: 'pending', tenant: TENANT },
      }
    },
    invalid: async () => [
      { body: { type: 'order.paid' }, field: 'body' },
      { path: '/webhooks/endpoints/x/test', field: 'path.id' },
    ],
    missing: `/webhooks/endpoints/${UNKNOWN}/test`,
    conflict: async () => ({
      path: `/webhooks/endpoints/${await makeEndpoint(db, { tenant: TENANT, enabled: false })}/test`,
      body: REASON,
      detail: 'is disabled',
    }),
  },
  {
    route: 'GET /webhooks/health',
    async happy() {
      const id = await makeEndpoint(db, { tenant: TENANT, disabledReason: 'broken' })
      await makeDeliveries(db, id, 2, { status: 'failed' })
      return {
        path: '/webhooks/health?limit=1000',
        answer: {
          items: expect.arrayContaining([
            expect.objectContaining({ id, state: 'disabled', reason: 'broken', failed: 2 }),
          ]),
        },
      }
    },
    invalid: atPath('/webhooks/health', [{ query: 'limit=1001', field: 'query.limit' }]),
  },
  {
    route: 'GET /webhooks/deliveries',
    async happy() {
      const id = await delivery('failed')
      return {
        path: `/webhooks/deliveries?tenant=${TENANT}&type=order.paid&status=failed&status=pending&from=2020-01-01T00:00:00Z&id=${id}`,
        answer: { items: [{ id, status: 'failed' }], next: null },
      }
    },
    invalid: atPath('/webhooks/deliveries', [
      ...BAD_PAGES,
      { query: 'status=lost', field: 'query.status' },
      { query: 'endpoint=1', field: 'query.endpoint' },
      { query: 'from=yesterday', field: 'query.from' },
      { query: 'id=x', field: 'query.id' },
      { query: 'error=%00', field: 'query.error' },
      { query: 'failedSince=2020-01-01T00:00:00Z&status=pending', field: 'failedSince' },
    ]),
  },
  {
    route: 'GET /webhooks/deliveries/{id}',
    async happy() {
      const id = await delivery('pending')
      return {
        path: `/webhooks/deliveries/${id}`,
        answer: { id, body: '{"n":1}', history: [], waitsFor: null, token: '0' },
      }
    },
    invalid: async () => [{ path: '/webhooks/deliveries/first', field: 'path.id' }],
    missing: '/webhooks/deliveries/999999',
  },
  oneDelivery(
    'replay',
    async () => delivery('delivered'),
    { status: 'pending', deliveredAt: null },
    {
      from: async () => delivery('pending'),
      detail: 'it is pending',
    },
  ),
  oneDelivery(
    'retry',
    async () => delivery('pending', 3_600_000),
    { status: 'pending' },
    { from: async () => delivery('failed'), detail: 'it is failed' },
  ),
  oneDelivery(
    'cancel',
    async () => delivery('pending'),
    { status: 'failed', lastErrorCode: 'cancelled' },
    { from: async () => delivery('delivered'), detail: 'it is delivered already' },
  ),
  {
    route: 'POST /webhooks/deliveries/changes/preview',
    happy: async () => ({
      path: '/webhooks/deliveries/changes/preview',
      body: { action: 'replay', ids: [await delivery('failed'), await delivery('pending')] },
      answer: { matched: 1, skipped: [expect.objectContaining({ why: expect.stringContaining('pending') })] },
    }),
    invalid: async () => [
      { body: { action: 'forget', ids: ['1'] }, field: 'body.action' },
      { body: { action: 'replay', ids: ['x'] }, field: 'body.ids.0' },
      { body: { action: 'cancel', filter: { status: ['failed'] } }, field: 'status' },
      { body: { action: 'cancel', filter: { endpoint: 'x' } }, field: 'body.filter.endpoint' },
    ],
  },
  {
    route: 'POST /webhooks/deliveries/changes',
    async happy() {
      const id = await delivery('failed')
      return {
        path: '/webhooks/deliveries/changes',
        body: { action: 'replay', ids: [id], ...REASON },
        answer: { action: 'webhooks.replay', namedIds: 1, isBackground: true },
        async afterwards({ body }) {
          expect(await changed(body.id)).toMatchObject({ changed: 1 })
          expect((await send('GET', `/webhooks/deliveries/${id}`)).body.status).toBe('pending')
        },
      }
    },
    invalid: async () => [
      { body: { action: 'replay', ids: ['1'] }, field: 'body.reason' },
      { body: { action: 'retry', filter: { status: ['delivered'] }, ...REASON }, field: 'status' },
      { body: { action: 'replay', ids: ['1'], rate: -1, ...REASON }, field: 'body.rate' },
    ],
  },
]

for (const each of CASES) testRoute(api, each, everything)
testAllHaveCases(WEBHOOKS, CASES)

describe('endpoints', () => {
  it('a secret is shown once, and neither stored for repeated requests nor shown by other routes', async () => {
    const headers = { 'idempotency-key': 'a-secret' }
    const sent = { key: 'operate', headers, body: { url: URL_GIVEN, tenant: TENANT } } as const
    const { body } = await send('POST', '/webhooks/endpoints', sent)
    expect(body.secret).toMatch(/^whsec_/)
    expect((await send('POST', '/webhooks/endpoints', sent)).body).not.toHaveProperty('secret')
    const rotation = { headers: { 'idempotency-key': 'another' }, body: {} }
    const path = `/webhooks/endpoints/${body.id}`
    const rotated = await send('POST', `${path}/rotate-secret`, rotation)
    expect(rotated.body.secret).toMatch(/^whsec_/)
    expect((await send('POST', `${path}/rotate-secret`, rotation)).body).not.toHaveProperty('secret')
    const { rows } = await db.query({ text: 'select * from leasehold.api_requests' })
    const shown = JSON.stringify([rows, (await send('GET', path)).body, (await send('GET', '/audit')).body])
    for (const secret of [body.secret, rotated.body.secret]) expect(shown).not.toContain(secret)
  })

  it('pages follow each other without a gap, in the order of creation', async () => {
    const tenant = 'paged'
    const ids = [await endpoint(tenant), await endpoint(tenant), await endpoint(tenant)]
    const first = await send('GET', `/webhooks/endpoints?tenant=${tenant}&limit=2`)
    const second = await send('GET', `/webhooks/endpoints?tenant=${tenant}&limit=2&cursor=${first.body.next}`)
    const found = [...first.body.items, ...second.body.items].map(({ id }: { id: string }) => id)
    expect(found).toEqual(ids)
    expect(second.body.next).toBeNull()
  })

  it('a key with the role read is not shown the public key, from which the secret would be read', async () => {
    const created = await send('POST', '/webhooks/endpoints', {
      body: { url: URL_GIVEN, tenant: TENANT, signing: 'v1a' },
    })
    const { id, publicKey } = created.body
    for (const [key, shown] of [
      ['read', null],
      ['operate', publicKey],
      ['tenantRead', publicKey],
    ] as const)
      expect((await send('GET', `/webhooks/endpoints/${id}`, { key })).body.publicKey, key).toBe(shown)
  })

  it('a test event is signed and delivered like any other, and its delivery shows the attempt', async () => {
    const target = await receiver()
    const created = await send('POST', '/webhooks/endpoints', {
      key: 'tenantOperate',
      body: { url: target.url, eventTypes: ['order.paid'] },
    })
    const { id, secret } = created.body
    const sent = await send('POST', `/webhooks/endpoints/${id}/test`, { key: 'tenantOperate', body: {} })
    await startDispatcher()
    await target.reached(1)
    const [{ headers, body } = { headers: {}, body: '' }] = target.received
    const verified = await verify({ headers, body }, secret)
    expect(verified).toMatchObject({ id: sent.body.eventId })
    expect(JSON.parse(body)).toMatchObject({ type: 'webhook.test', data: { endpointId: id } })
    const path = `/webhooks/deliveries/${sent.body.id}`
    await expect
      .poll(async () => (await send('GET', path, { key: 'tenantRead' })).body, { timeout: 30_000 })
      .toMatchObject({ status: 'delivered', history: [{ attempt: 1, status: 204, errorCode: null }] })
  })
})

describe('a key of a tenant', () => {
  it('creates endpoints for its own tenant, also without naming it, and for no other', async () => {
    const key = 'tenantOperate'
    for (const tenant of [undefined, TENANT]) {
      const created = await send('POST', '/webhooks/endpoints', { key, body: { url: URL_GIVEN, tenant } })
      expect(created).toMatchObject({ status: 201, body: { tenant: TENANT } })
    }
    const before = await everything()
    for (const tenant of [OTHER_TENANT, '']) {
      const refused = await send('POST', '/webhooks/endpoints', { key, body: { url: URL_GIVEN, tenant } })
      expect(refused).toMatchObject({ status: 422, body: { errors: [{ field: 'body.tenant' }] } })
    }
    expect(await everything()).toEqual(before)
  })

  it('creates no endpoint beyond the limit of its tenant', async () => {
    onTestFinished(async () => {
      await db.query({ text: "delete from leasehold.webhook_endpoints where secret = 'none'" })
    })
    await db.query({
      text: `insert into leasehold.webhook_endpoints (tenant, url, secret)
        select $1, $2 || n, 'none' from generate_series(1, 100) as n`,
      values: [OTHER_TENANT, URL_GIVEN],
    })
    onTestFinished(async () => {
      await db.query({
        text: 'delete from leasehold.webhook_endpoints where tenant = $1',
        values: [OTHER_TENANT],
      })
    })
    const refused = await send('POST', '/webhooks/endpoints', {
      key: 'otherTenant',
      body: { url: URL_GIVEN },
    })
    expect(refused).toMatchObject({ status: 422, body: { detail: expect.stringContaining('at most 100') } })
  })

  it('does every change to its own endpoints and deliveries', async () => {
    const key = 'tenantOperate'
    const id = await endpoint()
    const sent = { key, body: REASON } as const
    expect((await send('PATCH', `/webhooks/endpoints/${id}`, { key, body: { ordered: true } })).status).toBe(
      200,
    )
    for (const verb of ['disable', 'enable', 'rotate-secret', 'test'])
      expect((await send('POST', `/webhooks/endpoints/${id}/${verb}`, sent)).status, verb).toBeLessThan(300)
    for (const [verb, delivered] of [
      ['replay', await delivery('failed')],
      ['retry', await delivery('pending', 3_600_000)],
      ['cancel', await delivery('pending')],
    ])
      expect((await send('POST', `/webhooks/deliveries/${delivered}/${verb}`, sent)).status, verb).toBe(200)
    expect((await send('DELETE', `/webhooks/endpoints/${id}`, { key })).status).toBe(204)
  })

  it('sees no endpoint, delivery or health of another tenant in a list, and changes none by a filter', async () => {
    const own = await endpoint(TENANT)
    const other = await endpoint(OTHER_TENANT)
    const [ownDelivery = ''] = await makeDeliveries(db, own, 1, { status: 'failed' })
    const [otherDelivery = ''] = await makeDeliveries(db, other, 1, { status: 'failed' })
    const key = 'tenantOperate'
    for (const [path, field] of [
      ['/webhooks/endpoints?limit=1000', 'id'],
      [`/webhooks/endpoints?limit=1000&tenant=${OTHER_TENANT}`, 'id'],
      ['/webhooks/health?limit=1000', 'id'],
      ['/webhooks/deliveries?limit=1000', 'endpointId'],
      [`/webhooks/deliveries?limit=1000&id=${ownDelivery}&id=${otherDelivery}`, 'endpointId'],
      [`/webhooks/deliveries?limit=1000&tenant=${OTHER_TENANT}`, 'endpointId'],
    ] as const) {
      const ids = (await send('GET', path, { key })).body.items.map(
        (item: Record<string, string>) => item[field],
      )
      expect(ids, path).not.toContain(other)
      expect(ids.includes(own), path).toBe(!path.includes(OTHER_TENANT))
    }
    const body = { action: 'replay', ids: [ownDelivery, otherDelivery], ...REASON }
    const started = await send('POST', '/webhooks/deliveries/changes', { key, body })
    expect(await changed(started.body.id, key)).toMatchObject({ matched: 1, changed: 1 })
    expect((await send('GET', `/webhooks/deliveries/${otherDelivery}`)).body.status).toBe('failed')
    expect((await send('GET', `/changes/${started.body.id}`, { key: 'otherTenant' })).status).toBe(404)
  })
})

it('an event id names its delivery, unless it was sent to several endpoints', async () => {
  const [one, another] = [await endpoint('several'), await endpoint('several')]
  const [id = ''] = await makeDeliveries(db, one, 1, { status: 'failed' })
  const { eventId } = (await send('GET', `/webhooks/deliveries/${id}`)).body
  const path = `/webhooks/deliveries/${eventId}`
  expect((await send('GET', path)).body.id).toBe(id)
  await db.query({
    text: `insert into leasehold.webhook_outbox (event_id, endpoint_id, event_type, body, delivery_status, failed_at)
values ($1, $2, 'order.paid', '{}', 'failed', now())`,
    values: [eventId, another],
  })
  const before = await everything()
  for (const received of [
    await send('GET', path),
    await send('POST', `${path}/replay`, { key: 'operate', body: REASON }),
  ])
    expect(received).toMatchObject({
      status: 422,
      body: {
        errors: [
          { field: expect.stringMatching(/\bid$/), detail: expect.stringContaining('sent to 2 endpoints') },
        ],
      },
    })
  expect(await everything()).toEqual(before)
})

it('an endpoint recovers since a time: what failed then is replayed, what failed before and elsewhere is not', async () => {
  const [own, other] = [await endpoint(), await endpoint()]
  await makeDeliveries(db, own, 1, { status: 'failed', agoMs: 7_200_000 })
  const recent = await makeDeliveries(db, own, 2, { status: 'failed' })
  await makeDeliveries(db, other, 1, { status: 'failed' })
  const filter = { endpoint: own, failedSince: new Date(Date.now() - 3_600_000).toISOString() }
  const preview = await send('POST', '/webhooks/deliveries/changes/preview', {
    body: { action: 'replay', filter },
  })
  expect(preview.body.matched).toBe(2)
  const started = await send('POST', '/webhooks/deliveries/changes', {
    key: 'operate',
    body: { action: 'replay', filter, ...REASON },
  })
  expect(await changed(started.body.id)).toMatchObject({ changed: 2, filter })
  const pending = await send('GET', `/webhooks/deliveries?endpoint=${own}&status=pending`)
  expect(pending.body.items.map(({ id }: { id: string }) => id)).toEqual(recent.toReversed())
})

describe('the attempts of the last 24 hours', () => {
  it('are counted by the hour in which they were recorded, with their median duration and the last ten failures', async () => {
    const id = await endpoint()
    const other = await endpoint()
    await attempted(other, [
      [26 * 60, 'status', 1],
      [0, null, 1],
    ])
    for (const ms of [10, 20, 90]) await attempted(id, [[0, null, ms]])
    // A lease that expired has no duration; what is older than a day is not counted.
    const expired = await attempted(id, [
      [26 * 60, 'status', 1],
      [20 * 60, 'leaseExpired', null],
      [0, null, 40],
    ])
    const failing = await attempted(
      id,
      Array.from({ length: 12 }, (_, n) => [10 * 60 + (12 - n) / 100, n === 11 ? 'timeout' : 'status', 5]),
    )
    const { body } = await send('GET', `/webhooks/endpoints/${id}/health`, { key: 'tenantRead' })
    expect(body.hours).toHaveLength(24)
    const hours: { from: string; delivered: number; failed: number; medianMs: number | null }[] = body.hours
    const busy = hours.filter(({ delivered, failed }) => delivered + failed > 0)
    expect(hours.at(-1)).toMatchObject({ delivered: 4, failed: 0, medianMs: 30 })
    expect(busy.reduce((sum, { failed }) => sum + failed, 0)).toBe(13)
    expect(busy[0]).toMatchObject({ delivered: 0, failed: 1, medianMs: null })
    expect(Date.parse(hours[1]?.from ?? '') - Date.parse(hours[0]?.from ?? '')).toBe(3_600_000)
    expect(body.failures).toHaveLength(10)
    expect(body.failures[0]).toMatchObject({ deliveryId: failing, errorCode: 'timeout', status: null })
    expect(body.failures.map(({ deliveryId }: { deliveryId: string }) => deliveryId)).not.toContain(expired)
    expect(body.partial).toBe(false)
    expect((await send('GET', `/webhooks/endpoints/${other}/health`)).body.failures).toEqual([])
  })

  it('of several endpoints are counted at once, and those of other tenants are not shown', async () => {
    const [own, foreign] = [await endpoint(), await endpoint(OTHER_TENANT)]
    for (const id of [own, foreign])
      await attempted(id, [
        [0, 'status', 5],
        [0, null, 5],
      ])
    const path = `/webhooks/sparklines?endpoint=${foreign}&endpoint=${own}`
    const all = (await send('GET', path, { key: 'read' })).body
    expect(all.items.map(({ id }: { id: string }) => id)).toEqual([foreign, own])
    expect(all.times).toHaveLength(24)
    const { items } = (await send('GET', path, { key: 'tenantRead' })).body
    const last = Array(23).fill(0)
    expect(items).toEqual([{ id: own, delivered: [...last, 1], failed: [...last, 1] }])
    const first = (await send('GET', '/webhooks/sparklines', { key: 'otherTenant' })).body
    expect(first.items).toContainEqual({ id: foreign, delivered: [...last, 1], failed: [...last, 1] })
  })

  it('are partial where there are more deliveries than are read', async () => {
    const id = await endpoint()
    await makeDeliveries(db, id, 10_000)
    const { body } = await send('GET', `/webhooks/endpoints/${id}/health`)
    expect(body.partial).toBe(true)
    const quiet = await send('GET', `/webhooks/endpoints/${await endpoint()}/health`)
    expect(quiet.body.partial).toBe(false)
  })
})
