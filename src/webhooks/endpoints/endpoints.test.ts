import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { forgetWebhooks } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { NewEndpoint } from './endpoint.ts'
import { endpoints } from './endpoints.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

const secretKey = Buffer.alloc(32, 7).toString('base64')
const managed = endpoints(db, { secretKey })
const BY = { principal: 'ada', reason: 'a new customer' }
const UNKNOWN = '0190b3a0-0000-7000-8000-000000000001'
const HOOKS = 'https://receiver.example/hooks'

async function row(id: string): Promise<Record<string, unknown>> {
  const text = 'select * from leasehold.webhook_endpoints where id = $1'
  return (await db.query({ text, values: [id] })).rows[0] ?? {}
}

describe('an endpoint', () => {
  it('an endpoint is created with defaults, and the audit records by whom and why', async () => {
    const { endpoint, secret, publicKey } = await managed.create(
      { url: 'https://Receiver.example/hooks' },
      BY,
    )
    expect(endpoint).toEqual({
      id: endpoint.id,
      tenant: '',
      url: HOOKS,
      description: '',
      eventTypes: [],
      headers: {},
      ratePerSecond: null,
      concurrency: 10,
      timeoutMs: 15_000,
      ordered: false,
      signing: 'v1',
      enabled: true,
      disabledReason: null,
      disabledAt: null,
      failures: 0,
      failingSince: null,
      openUntil: null,
      previousSecretUntil: null,
      createdAt: endpoint.createdAt,
      updatedAt: endpoint.createdAt,
    })
    expect(secret).toMatch(/^whsec_/)
    expect(publicKey).toBeNull()
    expect(await auditEntries(db)).toEqual([
      {
        principal: 'ada',
        action: 'webhooks.endpoint.create',
        target: endpoint.id,
        details: { reason: 'a new customer', url: HOOKS },
      },
    ])
  })

  it('an endpoint has every field that was given, and the audit has only the names of its headers', async () => {
    const given: NewEndpoint = {
      url: HOOKS,
      tenant: 'acme',
      description: 'Their “shop”',
      eventTypes: ['order.paid', 'user.*', 'order.paid'],
      headers: { Authorization: 'Bearer t0ken' },
      ratePerSecond: 0.5,
      concurrency: 3,
      timeoutMs: 2_000,
      ordered: true,
      signing: 'v1',
    }
    const { endpoint } = await managed.create(given, { principal: 'ada' })
    const expected = {
      ...given,
      eventTypes: ['order.paid', 'user.*'],
      headers: { authorization: '***' },
    }
    expect(endpoint).toMatchObject(expected)
    expect(await managed.get(endpoint.id)).toMatchObject({ ...expected, publicKey: null })
    const [entry] = await auditEntries(db)
    expect(entry?.details).toMatchObject({ headers: ['authorization'], tenant: 'acme' })
    expect(JSON.stringify(entry)).not.toContain('t0ken')
  })

  it('update changes the given fields and no others', async () => {
    const { endpoint } = await managed.create({ url: HOOKS, ratePerSecond: 5, eventTypes: ['a'] }, BY)
    const changes = { description: 'slower', ratePerSecond: null, headers: { 'x-a': '1' } }
    const changed = await managed.update(endpoint.id, changes, BY)
    expect(changed).toEqual({
      ...endpoint,
      ...changes,
      headers: { 'x-a': '***' },
      headersRemoved: [],
      updatedAt: changed.updatedAt,
    })
    expect(changed.updatedAt.getTime()).toBeGreaterThan(endpoint.updatedAt.getTime())
    expect((await auditEntries(db))[1]).toEqual({
      principal: 'ada',
      action: 'webhooks.endpoint.update',
      target: endpoint.id,
      details: {
        reason: 'a new customer',
        description: 'slower',
        rate_per_second: null,
        headers: ['x-a'],
      },
    })
  })

  it('a new url closes the circuit; other changes do not', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    await openCircuit(endpoint.id)
    expect(await managed.update(endpoint.id, { concurrency: 1 }, BY)).toMatchObject({ failures: 9 })
    expect(await managed.update(endpoint.id, { url: `${HOOKS}/2` }, BY)).toMatchObject({
      url: `${HOOKS}/2`,
      failures: 0,
      failingSince: null,
      openUntil: null,
    })
  })

  it('a tenant has at most as many endpoints as the limit, also if they are created at once', async () => {
    const limited = endpoints(db, { secretKey, maxPerTenant: 3 })
    const create = async (tenant: string): Promise<unknown> => limited.create({ url: HOOKS, tenant }, BY)
    const results = await Promise.allSettled(Array.from({ length: 8 }, async () => create('acme')))
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(3)
    await expect(create('acme')).rejects.toMatchObject({
      code: 'REQUEST_INVALID',
      field: 'tenant',
      message: expect.stringContaining('tenant "acme" has 3 endpoints, and at most 3 are allowed.'),
      remedy: expect.stringContaining('webhookEndpointsPerTenant'),
    })
    expect(await limited.list({ tenant: 'acme' })).toMatchObject({ endpoints: { length: 3 } })
    await create('globex')
    const { endpoints: listed } = await limited.list({ tenant: 'acme' })
    await limited.delete(listed[0]?.id ?? '', BY)
    await create('acme')
  })

  it('without a limit of its own, a tenant has at most 100 endpoints; those without a tenant have no limit', async () => {
    await db.query({
      text: `insert into leasehold.webhook_endpoints (tenant, url, secret)
        select t, 'https://receiver.example/' || n, 'none' from generate_series(1, 100) as n, unnest(array['', 'acme']) as t`,
    })
    await expect(managed.create({ url: HOOKS, tenant: 'acme' }, BY)).rejects.toThrow('at most 100')
    await managed.create({ url: HOOKS }, BY)
  })

  it.each([0, 1.5, 1_000_001, Number.NaN])('the limit cannot be %s', (maxPerTenant) => {
    expect(() => endpoints(db, { secretKey, maxPerTenant })).toThrow('maxPerTenant')
  })

  it.each([
    ['host', 'https://other.example/hooks'],
    ['port', 'https://receiver.example:8443/hooks'],
  ])(
    'a url with another %s removes the headers, which may be credentials, and the audit names them',
    async (_part, url) => {
      const headers = { authorization: 'Bearer t0ken', 'x-a': '1' }
      const { endpoint } = await managed.create({ url: HOOKS, headers }, BY)
      const moved = await managed.update(endpoint.id, { url: `${HOOKS}/2?a=b` }, BY)
      expect(moved.headers).toEqual({ authorization: '***', 'x-a': '***' })
      expect(await managed.update(endpoint.id, { url }, BY)).toMatchObject({
        url,
        headers: {},
        headersRemoved: ['authorization', 'x-a'],
      })
      expect((await auditEntries(db)).at(-1)?.details).toMatchObject({
        url,
        headersRemoved: ['authorization', 'x-a'],
      })
    },
  )

  it('headers that are given together with a url of another origin are stored', async () => {
    const { endpoint } = await managed.create({ url: HOOKS, headers: { 'x-a': '1', 'x-b': '2' } }, BY)
    const changes = { url: 'https://other.example/', headers: { 'x-a': '1' } }
    expect((await managed.update(endpoint.id, changes, BY)).headers).toEqual({ 'x-a': '***' })
  })

  it('a url of another origin removes the headers whoever writes it', async () => {
    const { endpoint } = await managed.create({ url: HOOKS, headers: { 'x-a': '1' } }, BY)
    const set = async (url: string): Promise<unknown> => {
      await db.query({
        text: 'update leasehold.webhook_endpoints set url = $2 where id = $1',
        values: [endpoint.id, url],
      })
      return (await managed.get(endpoint.id)).headers
    }
    expect(await set('https://receiver.example?x')).toEqual({ 'x-a': '***' })
    expect(await set('https://receiver.example.evil.example/hooks')).toEqual({})
  })

  it('disable stores the reason, and enable closes the circuit', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    await openCircuit(endpoint.id)
    const disabled = await managed.disable(endpoint.id, { principal: 'ada', reason: 'they asked for it' })
    expect(disabled).toMatchObject({ enabled: false, disabledReason: 'they asked for it', failures: 9 })
    expect(disabled.disabledAt).toEqual(disabled.updatedAt)
    const second = await managed.disable(endpoint.id, { principal: 'bob' })
    expect(second).toMatchObject({ disabledReason: null, disabledAt: disabled.disabledAt })
    expect(await managed.enable(endpoint.id, { principal: 'ada' })).toMatchObject({
      enabled: true,
      disabledReason: null,
      disabledAt: null,
      failures: 0,
      failingSince: null,
      openUntil: null,
    })
    const actions = (await auditEntries(db)).map(({ principal, action }) => `${principal} ${action}`)
    expect(actions.slice(1)).toEqual([
      'ada webhooks.endpoint.disable',
      'bob webhooks.endpoint.disable',
      'ada webhooks.endpoint.enable',
    ])
  })

  it('delete removes the endpoint, and the audit records its url', async () => {
    const { endpoint } = await managed.create({ url: HOOKS, tenant: 'acme' }, BY)
    await managed.delete(endpoint.id, BY)
    await expect(managed.get(endpoint.id)).rejects.toMatchObject({ code: 'ENDPOINT_NOT_FOUND' })
    expect((await auditEntries(db))[1]).toMatchObject({
      action: 'webhooks.endpoint.delete',
      target: endpoint.id,
      details: { tenant: 'acme', url: HOOKS },
    })
  })

  it('a change that cannot be audited is not made', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    await db.query({ text: 'alter table leasehold.audit add constraint nobody check (false) not valid' })
    try {
      await expect(managed.disable(endpoint.id, BY)).rejects.toThrow('nobody')
      await expect(managed.create({ url: HOOKS }, BY)).rejects.toThrow('nobody')
      await expect(managed.delete(endpoint.id, BY)).rejects.toThrow('nobody')
    } finally {
      await db.query({ text: 'alter table leasehold.audit drop constraint nobody' })
    }
    expect((await managed.list()).endpoints).toEqual([endpoint])
  })
})

describe('an unknown endpoint', () => {
  it.each([
    ['get', async () => managed.get(UNKNOWN)],
    ['update', async () => managed.update(UNKNOWN, { concurrency: 1 }, BY)],
    ['rotateSecret', async () => managed.rotateSecret(UNKNOWN, BY)],
    ['enable', async () => managed.enable(UNKNOWN, BY)],
    ['disable', async () => managed.disable(UNKNOWN, BY)],
    ['delete', async () => managed.delete(UNKNOWN, BY)],
  ])('%s of an unknown endpoint fails, and nothing is audited', async (_, act) => {
    await expect(act()).rejects.toMatchObject({ code: 'ENDPOINT_NOT_FOUND' })
    expect(await auditEntries(db)).toEqual([])
  })
})

describe('list', () => {
  it('list returns the endpoints that match a filter, in order of creation, page by page', async () => {
    const ids: string[] = []
    for (const [i, given] of [
      {},
      { tenant: 'acme' },
      { eventTypes: ['order.*'] },
      { tenant: 'acme' },
    ].entries()) {
      ids.push((await managed.create({ url: `${HOOKS}/${i}`, ...given }, BY)).endpoint.id)
    }
    await managed.disable(ids[3] ?? '', BY)
    const of = async (filter: Parameters<typeof managed.list>[0]): Promise<number[]> =>
      (await managed.list(filter)).endpoints.map(({ id }) => ids.indexOf(id))
    expect(await of({})).toEqual([0, 1, 2, 3])
    expect(await of({ tenant: 'acme' })).toEqual([1, 3])
    expect(await of({ tenant: '' })).toEqual([0, 2])
    expect(await of({ tenant: 'acme', enabled: true })).toEqual([1])
    expect(await of({ enabled: false })).toEqual([3])
    expect(await of({ eventType: 'order.paid' })).toEqual([0, 1, 2, 3])
    expect(await of({ eventType: 'user.deleted', tenant: '' })).toEqual([0])
    const first = await managed.list({ limit: 3 })
    expect(first.endpoints).toHaveLength(3)
    expect(first.next).toBe(ids[2])
    expect(await managed.list({ limit: 3, after: first.next ?? '' })).toMatchObject({
      endpoints: [{ id: ids[3] }],
      next: null,
    })
    expect(await managed.list({ limit: 4 })).toMatchObject({ next: null })
  })

  it.each([
    [{ limit: 0 }, 'limit is 0, but must be a whole number from 1 to 1000'],
    [{ after: 'x' }, "after is 'x'"],
    [{ tenant: 'a\0' }, 'tenant is'],
  ])('list refuses the filter %j', async (filter, message) => {
    await expect(managed.list(filter)).rejects.toThrow(message)
  })
})

async function openCircuit(id: string): Promise<void> {
  await db.query({
    text: `update leasehold.webhook_endpoints set failures = 9, failing_since = now(), open_until = now() where id = $1`,
    values: [id],
  })
  expect(await row(id)).toMatchObject({ failures: 9 })
}
