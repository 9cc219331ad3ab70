import { afterAll, beforeEach, expect, it } from 'vitest'
import { withBuckets } from '../../../test/support/buckets.ts'
import { openSession, useDatabase } from '../../../test/support/database.ts'
import { useLoginRoles } from '../../../test/support/login-roles.ts'
import { forgetWebhooks, makeEndpoint, writtenDeliveries } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { showDelivery } from '../admin/browse.ts'
import { sendTest } from './test-event.ts'

const database = useDatabase()
const logins = useLoginRoles(database)
const db = openDatabase({ url: database.url })
const operator = openDatabase({ url: logins.operator.url })
afterAll(async () => Promise.all([db.close(), operator.close()]))
beforeEach(async () => forgetWebhooks(db))

const by = { principal: 'olga', reason: 'does it arrive?' }
const UNKNOWN = '0190b3a0-0000-7000-8000-00000000000a'

it.each([1, 4])(
  'an operator sends a test event to one endpoint, whatever it subscribes to, with %i buckets',
  async (buckets) => {
    await withBuckets(db, buckets)
    const endpoint = await makeEndpoint(db, { tenant: 'acme', eventTypes: ['order.paid'] })
    await makeEndpoint(db, { tenant: 'acme' })
    const { id, eventId } = await sendTest(operator, endpoint.toUpperCase(), by)
    const [written, ...others] = await writtenDeliveries(db)
    expect(others).toEqual([])
    expect(written).toMatchObject({
      event_id: eventId,
      endpoint_id: endpoint,
      event_type: 'webhook.test',
      ordering_key: null,
      headers: {},
    })
    expect(JSON.parse(written?.body ?? '')).toEqual({
      type: 'webhook.test',
      timestamp: expect.any(String),
      data: { endpointId: endpoint },
    })
    expect(await showDelivery(db, id)).toMatchObject({ eventId, status: 'pending' })
    const { rows } = await db.query({
      text: 'select principal, action, target, details from leasehold.audit',
    })
    expect(rows).toEqual([
      {
        principal: 'olga',
        action: 'webhooks.endpoint.test',
        target: endpoint,
        details: { reason: 'does it arrive?', eventId, delivery: id },
      },
    ])
  },
)

it.each([
  ['an unknown endpoint', UNKNOWN, by, 'ENDPOINT_NOT_FOUND'],
  ['what is no id', 'one', by, 'REQUEST_INVALID'],
  ['nobody', UNKNOWN, { principal: ' ' }, 'REQUEST_INVALID'],
])('a test event is refused for %s', async (_, id, who, code) => {
  await expect(sendTest(db, id, who)).rejects.toMatchObject({ code })
})

it('a test event to a disabled endpoint is refused, because it would wait', async () => {
  const endpoint = await makeEndpoint(db, { enabled: false })
  await expect(sendTest(db, endpoint, by)).rejects.toMatchObject({ code: 'STATE_CONFLICT' })
  expect(await writtenDeliveries(db)).toEqual([])
})

it('the role of a tenant inserts deliveries to its own endpoints only, and chooses no state', async () => {
  const own = await makeEndpoint(db, { tenant: 'acme' })
  const other = await makeEndpoint(db, { tenant: 'globex' })
  const session = await openSession(logins.tenant.url)
  await session.query("set leasehold.tenant = 'acme'")
  const insert = async (endpoint: string, column = '', value = ''): Promise<unknown> =>
    session
      .query(
        `insert into leasehold.webhook_outbox (endpoint_id, event_type, body${column}) values ($1, 'a', '1'${value})`,
        [endpoint],
      )
      .then(
        ({ rowCount }) => rowCount,
        (error: Error) => error.message,
      )
  expect(await insert(own)).toBe(1)
  expect(await insert(other)).toContain('violates row-level security policy')
  expect(await insert(own, ', delivery_status', ", 'delivered'")).toContain('permission denied')
  expect(await insert(own, ', lease_token', ', 7')).toContain('permission denied')
})
