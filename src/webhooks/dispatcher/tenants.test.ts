import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint, forgetWebhooks } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { dispatcher } from './dispatcher.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()

beforeEach(async () => forgetWebhooks(db))
afterAll(async () => db.close())

const settings = { concurrency: 16 }

async function sendTo(tenant: string, events: number): Promise<void> {
  await db.query({
    text: `select leasehold.send_webhook('test.happened', jsonb_build_object('n', n), tenant => $1)
from generate_series(1, $2::int) as n`,
    values: [tenant, events],
  })
}

async function addEndpoints(target: string, tenant: string, count: number): Promise<void> {
  for (let n = 0; n < count; n += 1) await addEndpoint(db, target, { tenant })
}

it('a tenant whose endpoints never answer uses its share of the slots, and other tenants get their deliveries', async () => {
  const silent = await receiver(async () => new Promise<never>(() => undefined))
  const healthy = await receiver()
  await addEndpoints(silent.url, 'slow', 40)
  await addEndpoints(healthy.url, 'fast', 1)
  await sendTo('slow', 3)
  await startDispatcher({ settings, tenantShare: 0.5 })
  await silent.reached(8)
  await sendTo('fast', 50)
  await healthy.reached(50)
  expect(silent.most).toBe(8)
})

it('a tenant with nothing in flight gets its deliveries, however many other tenants never answer', async () => {
  const silent = await receiver(async () => new Promise<never>(() => undefined))
  const healthy = await receiver()
  const slow = ['slow 1', 'slow 2', 'slow 3']
  for (const tenant of slow) await addEndpoints(silent.url, tenant, 20)
  await addEndpoints(healthy.url, 'fast', 1)
  for (const tenant of slow) await sendTo(tenant, 3)
  await startDispatcher({ settings })
  // Two slots are reserved for tenants with nothing in flight; the third tenant may have taken one of them.
  await silent.reached(14)
  await sendTo('fast', 20)
  await healthy.reached(20)
  expect(silent.most).toBeLessThanOrEqual(15)
})

it('the only tenant may use all slots', async () => {
  const silent = await receiver(async () => new Promise<never>(() => undefined))
  await addEndpoints(silent.url, 'slow', 20)
  await sendTo('slow', 1)
  await startDispatcher({ settings })
  await silent.reached(16)
  expect(silent.most).toBe(16)
})

it.each<[object, string]>([
  [{ tenantshare: 0.5 }, 'The options of dispatcher: unknown option tenantshare (did you mean tenantShare?)'],
  [{ circuitBreaker: { threshold: 1 } }, 'circuitBreaker has the unknown option threshold'],
])('the options %j of a dispatcher are refused', (options, message) => {
  expect(() => dispatcher(options)).toThrow(message)
  expect(() => dispatcher(options)).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
})

it.each([0, -1, 1.5, Number.NaN, '0.5'])('a tenantShare of %j is refused', (tenantShare) => {
  // As a caller without types would.
  expect(() => dispatcher({ tenantShare: tenantShare as number })).toThrow(
    /tenantShare of webhooks cannot be .*above 0 and at most 1/,
  )
})
