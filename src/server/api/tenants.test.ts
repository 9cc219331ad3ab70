/** A key of a tenant: what it sees and changes is decided by the database, whatever a statement lacks. */
import type { Client } from 'pg'
import { beforeAll, describe, expect, it } from 'vitest'
import { requestBulkChange, resumeBulkChange } from '../../operations/bulk-change.ts'
import { OTHER_TENANT, TENANT, useApi } from '../../../test/support/api.ts'
import { openSession } from '../../../test/support/database.ts'
import { makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { type Database, openDatabase } from '../../postgres/index.ts'
import { actingAs } from './acting.ts'
import { bulkChange } from './bulk-changes.ts'

const { send, db, url, loginUrl } = useApi()

/** The key, as the audit names it. */
const PRINCIPAL = 'acme/tenantOperate'
const endpoints: Record<string, string> = {}

beforeAll(async () => {
  for (const tenant of [TENANT, OTHER_TENANT, '']) {
    const id = await makeEndpoint(db, { tenant })
    endpoints[tenant] = id
    await makeDeliveries(db, id, 2, { status: 'failed', error: `of ${tenant}` })
    await makeDeliveries(db, id, 1)
  }
  await db.query({
    text: `update leasehold.webhook_outbox set history = '[{"attempt": 1, "error": "refused"}]'`,
  })
  await db.query({
    text: `insert into leasehold.audit (principal, action, target, details)
select p, 'test', null, '{}' from unnest(array[$1, 'otherTenant', 'admin']) as p`,
    values: [PRINCIPAL],
  })
})

/** In a transaction that is rolled back, as the database role of a tenant; its statements have no condition at all. */
async function asTenant<Result>(
  work: (session: Client) => Promise<Result>,
  { from = loginUrl, tenant = TENANT }: { readonly from?: string; readonly tenant?: string } = {},
): Promise<Result> {
  const session = await openSession(from)
  await session.query('begin')
  await session.query(`set local role leasehold_tenant`)
  await session.query(
    `select set_config('leasehold.tenant', $1, true), set_config('leasehold.principal', $2, true)`,
    [tenant, PRINCIPAL],
  )
  try {
    return await work(session)
  } finally {
    await session.query('rollback')
  }
}

const REFUSED = { code: '42501' }

describe.each([
  ['by the login role of the API', () => loginUrl],
  ['by a superuser who acts as a tenant', () => url],
])('SQL without a condition, %s', (_, from) => {
  const act = async <Result>(work: (session: Client) => Promise<Result>): Promise<Result> =>
    asTenant(work, { from: from() })

  it('reads the endpoints, deliveries and attempts of the tenant only', async () => {
    await act(async (session) => {
      const all = async (text: string): Promise<unknown[]> => (await session.query(text)).rows
      expect(await all('select distinct tenant from leasehold.webhook_endpoints')).toEqual([
        { tenant: TENANT },
      ])
      for (const table of ['webhook_outbox', 'webhook_attempts'])
        expect(
          await all(`select endpoint_id::text as id, count(*)::int from leasehold.${table} group by 1`),
        ).toEqual([{ id: endpoints[TENANT], count: 3 }])
    })
  })

  it('changes the rows of the tenant only', async () => {
    await act(async (session) => {
      const changed = async (text: string): Promise<number | null> => (await session.query(text)).rowCount
      expect(await changed(`update leasehold.webhook_endpoints set description = 'mine'`)).toBe(1)
      expect(await changed(`update leasehold.webhook_outbox set last_error = 'mine'`)).toBe(3)
      // Without its deliveries the endpoint could be removed.
      await session.query('savepoint s')
      const removed = changed('delete from leasehold.webhook_endpoints')
      await expect(removed.catch((error: unknown) => error)).resolves.toSatisfy(
        (result) => result === 1 || (result instanceof Error && 'code' in result && result.code === '23503'),
      )
    })
  })

  it.each([
    [
      'give an endpoint to another tenant',
      `update leasehold.webhook_endpoints set tenant = '${OTHER_TENANT}'`,
    ],
    ['give an endpoint to no tenant', `update leasehold.webhook_endpoints set tenant = ''`],
    [
      'create an endpoint of another tenant',
      `insert into leasehold.webhook_endpoints (tenant, url, secret) values ('${OTHER_TENANT}', 'https://a.example/', 'x')`,
    ],
    [
      'create an endpoint of no tenant',
      `insert into leasehold.webhook_endpoints (url, secret) values ('https://a.example/', 'x')`,
    ],
    [
      'move a delivery to another endpoint',
      'update leasehold.webhook_outbox set endpoint_id = leasehold.new_event_id()',
    ],
    ['write a delivery', `insert into leasehold.webhook_outbox (event_type, body) values ('a', '{}')`],
    ['remove a delivery', 'delete from leasehold.webhook_outbox'],
    ['change what is delivered', `update leasehold.webhook_outbox set body = '{}'`],
    [
      'write to the audit as somebody else',
      `insert into leasehold.audit (principal, action, details) values ('admin', 'a', '{}')`,
    ],
    ['change the audit', `update leasehold.audit set details = '{}'`],
    ['remove from the audit', 'delete from leasehold.audit'],
    ['read events', 'select from leasehold.outbox'],
    ['read jobs', 'select from leasehold.sync_jobs'],
    ['read keys', 'select from leasehold.api_keys'],
    ['read answers', 'select from leasehold.api_requests'],
    ['read settings', 'select from leasehold.settings'],
    ['read the registry of workers', 'select from leasehold.workers'],
    ['write events', `select leasehold.enqueue('a', '{}')`],
  ])('cannot %s', async (_what, statement) => {
    await act(async (session) => expect(session.query(statement)).rejects.toMatchObject(REFUSED))
  })

  it('reads and writes its own entries of the audit only', async () => {
    await act(async (session) => {
      await session.query(
        `insert into leasehold.audit (principal, action, details) values ('${PRINCIPAL}', 'a', '{}')`,
      )
      const { rows } = await session.query('select distinct principal from leasehold.audit')
      expect(rows).toEqual([{ principal: PRINCIPAL }])
    })
  })
})

it('a session that names no tenant sees nothing, not even the endpoints of no tenant', async () => {
  await asTenant(
    async (session) => {
      const { rows } = await session.query('select from leasehold.webhook_endpoints')
      expect(rows).toEqual([])
    },
    { tenant: '' },
  )
  const session = await openSession(loginUrl)
  await session.query('begin; set local role leasehold_tenant')
  await expect(session.query('select from leasehold.webhook_endpoints')).rejects.toMatchObject({
    code: '42704',
  })
  await session.query('rollback')
})

it('nothing of others was changed', async () => {
  const { rows } = await db.query({
    text: `select e.tenant, count(*)::int as deliveries from leasehold.webhook_outbox as d
join leasehold.webhook_endpoints as e on e.id = d.endpoint_id group by 1 order by 1`,
  })
  expect(rows).toEqual(['', TENANT, OTHER_TENANT].map((tenant) => ({ tenant, deliveries: 3 })))
})

it('a key of a tenant lists its own entries of the audit', async () => {
  const { body } = await send('GET', '/audit', { key: 'tenantOperate' })
  expect(new Set(body.items.map(({ principal }: { principal: string }) => principal))).toEqual(
    new Set([PRINCIPAL]),
  )
  expect((await send('GET', '/audit', { key: 'tenantRead' })).body.items).toEqual([])
})

describe('a bulk change of a tenant', () => {
  const declaration = bulkChange('webhooks.replay')
  let own: Database
  let tenants: Database
  beforeAll(() => {
    own = openDatabase({ url: loginUrl })
    tenants = actingAs(
      own,
      { role: 'tenant', tenant: TENANT, principal: PRINCIPAL, statementTimeoutMs: 60_000, readOnly: false },
      'leasehold',
    )
    return async () => own.close()
  })

  async function request(): Promise<string> {
    const filter: object = { type: 'order.paid' }
    if (declaration === undefined) throw new Error('there is a replay of deliveries')
    return requestBulkChange(
      tenants,
      declaration,
      { filter, principal: PRINCIPAL, reason: 'test' },
      { tenant: TENANT, keyId: null },
    )
  }

  it('concerns the deliveries of the tenant only', async () => {
    const changeId = await request()
    if (declaration === undefined) throw new Error('there is a replay of deliveries')
    const result = await resumeBulkChange(tenants, declaration, changeId, {
      principal: PRINCIPAL,
      inBackground: true,
    })
    expect(result).toMatchObject({ matched: 2, changed: 2, finished: true })
    const { rows } = await db.query({
      text: `select e.tenant, count(*)::int from leasehold.webhook_outbox as d join leasehold.webhook_endpoints as e on e.id = d.endpoint_id
where delivery_status = 'failed' group by 1 order by 1`,
    })
    expect(rows).toEqual(['', OTHER_TENANT].map((tenant) => ({ tenant, count: 2 })))
  })

  it('is seen by that key and by keys of all tenants, and by no other', async () => {
    const id = await request()
    expect((await send('GET', `/changes/${id}`, { key: 'tenantOperate' })).body).toMatchObject({
      state: 'running',
    })
    expect((await send('GET', `/changes/${id}`, { key: 'read' })).status).toBe(200)
    for (const key of ['otherTenant', 'tenantRead'] as const)
      expect((await send('GET', `/changes/${id}`, { key })).status).toBe(404)
    expect((await send('POST', `/changes/${id}/cancel`, { key: 'otherTenant' })).status).toBe(404)
  })

  it('is ended by an operator, and the tenant sees that', async () => {
    const id = await request()
    const cancelled = await send('POST', `/changes/${id}/cancel`, { key: 'operate' })
    expect(cancelled.body).toMatchObject({ state: 'cancelled', principal: PRINCIPAL })
    const seen = await send('GET', `/changes/${id}`, { key: 'tenantOperate' })
    expect(seen.body).toMatchObject({ id, state: 'cancelled' })
    if (declaration === undefined) throw new Error('there is a replay of deliveries')
    const inBackground = true
    await expect(
      resumeBulkChange(tenants, declaration, id, { principal: PRINCIPAL, inBackground }),
    ).rejects.toMatchObject({
      code: 'REQUEST_INVALID',
    })
    const { body } = await send('GET', '/audit?action=webhooks.replay&principal=operate')
    expect(body.items).toHaveLength(1)
  })
})

it('nobody else has the name of a key of a tenant: an account of the same name sees and shows nothing of it', async () => {
  await db.query({
    text: `insert into leasehold.audit (principal, action) values ('tenantOperate', 'a.secret'), ('globex/tenantOperate', 'a.secret')`,
  })
  const { body } = await send('GET', '/audit?action=a.secret', { key: 'tenantOperate' })
  expect(body.items).toEqual([])
})

it('what a tenant asked for is not resumed by a command, which would have the rights of an operator', async () => {
  const declaration = bulkChange('webhooks.replay')
  if (declaration === undefined) throw new Error('there is no such change')
  const asked = { ids: ['1'], principal: PRINCIPAL, reason: 'test' }
  const changeId = await requestBulkChange(db, declaration, asked, { tenant: TENANT, keyId: null })
  await expect(resumeBulkChange(db, declaration, changeId, { principal: 'operator' })).rejects.toThrow(
    'The HTTP API runs this change',
  )
})
