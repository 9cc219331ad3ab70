/** Without the policies of the database a tenant would see the rows of all, so that its requests are refused. */
import { afterAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { systemClock } from '../../clock.ts'
import { requestBulkChange } from '../../operations/bulk-change.ts'
import { showChange } from '../../operations/changes.ts'
import { createPortalLink } from '../../operations/api-sessions.ts'
import { OTHER_TENANT, TENANT, useApi } from '../../../test/support/api.ts'
import { makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { type Database, openDatabase } from '../../postgres/index.ts'
import { findActingRoles } from './acting.ts'
import { type Api, createApi } from './api.ts'
import { BackgroundChanges } from './background-changes.ts'
import { bulkChange } from './bulk-changes.ts'

const { db, keys, loginUrl } = useApi()
const own = openDatabase({ url: loginUrl })
const errors: unknown[] = []
afterAll(async () => own.close())

/** A server that has just started. */
function start(): Api {
  return createApi({ db: own, onError: (error) => void errors.push(error) })
}

async function ask(api: Api, text: string | undefined, method = 'GET', path = '/session', body?: object) {
  const response = await api.fetch(
    new Request(`http://localhost/api/v1${path}`, {
      method,
      headers: {
        ...(text === undefined ? {} : { authorization: `Bearer ${text}` }),
        'content-type': 'application/json',
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    }),
  )
  // oxlint-disable-next-line typescript/no-explicit-any -- the tests read what they expect
  return { status: response.status, body: (await response.json()) as any }
}

/** What an operator could do by mistake, and how to undo it. */
const BROKEN = [
  ...['webhook_endpoints', 'webhook_outbox', 'audit'].flatMap((table) => [
    {
      what: `the policy of ${table} is missing`,
      table,
      sql: `alter policy leasehold_tenant on leasehold.${table} rename to other; alter policy other on leasehold.${table} to leasehold_reader`,
      undo: `alter policy other on leasehold.${table} to leasehold_tenant; alter policy other on leasehold.${table} rename to leasehold_tenant`,
      remedy: 'leasehold roles',
    },
    {
      what: `row-level security is disabled on ${table}`,
      table,
      sql: `alter table leasehold.${table} disable row level security`,
      undo: `alter table leasehold.${table} enable row level security`,
      remedy: 'ENABLE ROW LEVEL SECURITY',
    },
  ]),
  {
    what: 'the policy of webhook_endpoints lets everything through',
    table: 'webhook_endpoints',
    sql: 'alter policy leasehold_tenant on leasehold.webhook_endpoints using (true)',
    undo: `alter policy leasehold_tenant on leasehold.webhook_endpoints using (tenant = nullif(current_setting('leasehold.tenant'), ''))`,
    remedy: 'leasehold roles',
  },
  {
    what: 'the policy of webhook_outbox lets everything through',
    table: 'webhook_outbox',
    sql: 'alter policy leasehold_tenant on leasehold.webhook_outbox using (true)',
    undo: 'alter policy leasehold_tenant on leasehold.webhook_outbox using (endpoint_id in (select id from leasehold.webhook_endpoints))',
    remedy: 'leasehold roles',
  },
  {
    what: 'the policy of audit lets everything be written',
    table: 'audit',
    sql: 'alter policy leasehold_tenant on leasehold.audit with check (true)',
    undo: `alter policy leasehold_tenant on leasehold.audit with check (principal = current_setting('leasehold.principal'))`,
    remedy: 'leasehold roles',
  },
  {
    what: 'the policy limits what is read only',
    table: 'webhook_endpoints',
    sql: `alter policy leasehold_tenant on leasehold.webhook_endpoints to leasehold_reader;
create policy another on leasehold.webhook_endpoints as restrictive for select to leasehold_tenant using (false)`,
    undo: `drop policy another on leasehold.webhook_endpoints; alter policy leasehold_tenant on leasehold.webhook_endpoints to leasehold_tenant`,
    remedy: 'leasehold roles',
  },
  {
    // The attributes of the role, which are checked as well, are those of all databases of the server.
    what: 'the role of tenants owns a table, and is not limited by its policies',
    table: 'audit',
    sql: 'alter table leasehold.audit owner to leasehold_tenant',
    undo: `alter table leasehold.audit owner to current_user;
grant select, insert (principal, action, target, details) on leasehold.audit to leasehold_tenant`,
    remedy: 'NOBYPASSRLS',
  },
  {
    what: 'the policy is permissive',
    table: 'webhook_endpoints',
    sql: `alter policy leasehold_tenant on leasehold.webhook_endpoints to leasehold_reader;
create policy another on leasehold.webhook_endpoints to leasehold_tenant using (false)`,
    undo: `drop policy another on leasehold.webhook_endpoints; alter policy leasehold_tenant on leasehold.webhook_endpoints to leasehold_tenant`,
    remedy: 'leasehold roles',
  },
]

describe.each(BROKEN)('where $what', ({ table, sql, undo, remedy }) => {
  it('keys and portals of tenants are refused, and others are not, until it is repaired', async () => {
    const before = start()
    const { token: opened } = await createPortalLink(db, { tenant: TENANT, role: 'read' }, COMMAND)
    const { bearer } = (await ask(before, undefined, 'POST', '/session', { link: opened })).body
    const { token: link } = await createPortalLink(db, { tenant: TENANT, role: 'read' }, COMMAND)
    const api = start()
    await db.query({ text: sql })
    const refused = {
      status: 503,
      body: {
        code: 'POLICY_MISSING',
        detail: expect.stringContaining(`leasehold.${table}`),
        remedy: expect.stringContaining(remedy),
      },
    }
    try {
      for (const text of [keys.tenantRead, keys.tenantOperate, bearer])
        for (const path of ['/session', '/webhooks/endpoints'])
          expect(await ask(api, text, 'GET', path)).toMatchObject(refused)
      expect(await ask(api, undefined, 'POST', '/session', { key: keys.tenantRead })).toMatchObject(refused)
      expect(await ask(api, undefined, 'POST', '/session', { link })).toMatchObject(refused)
      for (const text of [keys.read, keys.admin])
        expect((await ask(api, text, 'GET', '/webhooks/endpoints')).status).toBe(200)
      // It is an error that its operators have to see.
      expect(errors.splice(0)).toHaveLength(8)
    } finally {
      await db.query({ text: undo })
    }
    expect((await ask(api, keys.tenantRead)).status).toBe(200)
    // The link was not used up.
    expect((await ask(api, undefined, 'POST', '/session', { link })).status).toBe(200)
    expect(errors).toEqual([])
    await Promise.all([before.stop(), api.stop()])
  })
})

const COMMAND = { principal: 'test', keyId: null }

it('a policy that is dropped while the server runs is noticed within a minute, and so is its repair', async () => {
  const api = start()
  let laterMs = 0
  const now = systemClock.monotonicNow.bind(systemClock)
  const clock = vi.spyOn(systemClock, 'monotonicNow').mockImplementation(() => now() + laterMs)
  onTestFinished(() => clock.mockRestore())
  expect((await ask(api, keys.tenantRead)).status).toBe(200)
  await db.query({ text: 'drop policy leasehold_tenant on leasehold.webhook_outbox' })
  laterMs += 60_000
  expect((await ask(api, keys.tenantRead)).status).toBe(503)
  expect((await ask(api, keys.operate)).status).toBe(200)
  errors.length = 0
  await db.query({
    text: `create policy leasehold_tenant on leasehold.webhook_outbox as restrictive to leasehold_tenant
using (endpoint_id in (select id from leasehold.webhook_endpoints))`,
  })
  expect((await ask(api, keys.tenantRead)).status).toBe(200)
  await api.stop()
})

it('the policies are read once a minute, however many requests of tenants there are', async () => {
  let nowMs = 0
  let read = 0
  const counting: Database = {
    ...own,
    transaction: async (work, options) => {
      read += 1
      return own.transaction(work, options)
    },
  }
  const roles = findActingRoles(counting, 'leasehold', { monotonicNow: () => nowMs })
  await roles.prefix()
  read = 0
  const ask = async (): Promise<unknown> =>
    Promise.all(Array.from({ length: 10 }, async () => roles.requireTenantPolicies()))
  for (nowMs of [0, 30_000, 59_999]) await ask()
  expect(read).toBe(1)
  for (nowMs of [60_000, 119_999]) await ask()
  expect(read).toBe(2)
})

it('a bulk change of a tenant waits where a policy is missing, and changes nothing of others', async () => {
  for (const tenant of [TENANT, OTHER_TENANT])
    await makeDeliveries(db, await makeEndpoint(db, { tenant }), 2, { status: 'failed' })
  const declaration = bulkChange('webhooks.replay')
  if (declaration === undefined) throw new Error('there is a replay of deliveries')
  const filter: object = { type: 'order.paid' }
  const principal = 'acme/tenantOperate'
  const asked = { filter, principal, reason: 'test' }
  const id = await requestBulkChange(db, declaration, asked, { tenant: TENANT, keyId: null })
  const failed = async (): Promise<unknown> =>
    (
      await db.query({
        text: `select tenant, count(*)::int from leasehold.webhook_outbox as d join leasehold.webhook_endpoints as e on e.id = endpoint_id
where delivery_status = 'failed' group by 1 order by 1`,
      })
    ).rows
  const run = async (): Promise<void> => {
    const changes = new BackgroundChanges({
      db: own,
      schema: 'leasehold',
      roles: findActingRoles(own, 'leasehold'),
      onError: (error) => void errors.push(error),
    })
    changes.start({ changeId: id, action: 'webhooks.replay', principal, tenant: TENANT })
    await expect
      .poll(async () => errors.length > 0 || (await showChange(db, id)).state !== 'running')
      .toBe(true)
    await changes.stop()
  }
  await db.query({ text: 'alter table leasehold.webhook_endpoints disable row level security' })
  await run()
  expect(errors.splice(0)).toMatchObject([{ code: 'POLICY_MISSING' }])
  expect(await showChange(db, id)).toMatchObject({ state: 'running', changed: 0 })
  expect(await failed()).toEqual([TENANT, OTHER_TENANT].map((tenant) => ({ tenant, count: 2 })))
  await db.query({ text: 'alter table leasehold.webhook_endpoints enable row level security' })
  await run()
  expect(await showChange(db, id)).toMatchObject({ state: 'finished', changed: 2 })
  expect(await failed()).toEqual([{ tenant: OTHER_TENANT, count: 2 }])
})
