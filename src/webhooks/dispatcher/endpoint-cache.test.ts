/** Endpoints with limits that the table refuses: written before the constraint existed, or by replication. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { collect } from '../../../test/support/running-worker.ts'
import { deliveries, sendAll, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint, forgetWebhooks, SECRET_KEY } from '../../../test/support/webhook-endpoints.ts'
import { systemClock } from '../../clock.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../../worker/index.ts'
import { secretKey } from '../signing/encryption.ts'
import { EndpointCache, type EndpointState } from './endpoint-cache.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()

beforeEach(async () => {
  await forgetWebhooks(db)
  await db.query({
    text: `alter table leasehold.webhook_endpoints
      drop constraint if exists webhook_endpoints_rate_is_finite_and_above_zero,
      drop constraint if exists webhook_endpoints_concurrency_in_range,
      drop constraint if exists webhook_endpoints_timeout_in_range`,
  })
})
afterAll(async () => db.close())

const INVALID_LIMITS = [
  { rate_per_second: 'NaN' },
  { rate_per_second: 'Infinity' },
  { rate_per_second: 0 },
  { rate_per_second: -1 },
  { concurrency: 0 },
  { timeout_ms: 0 },
  { timeout_ms: 2_147_483_647 },
]

describe('the endpoint cache', () => {
  const reported: { readonly id: string; readonly error: unknown }[] = []
  const newCache = (): EndpointCache =>
    new EndpointCache({
      db,
      schema: 'leasehold',
      role: 'webhooks',
      keys: () => secretKey(SECRET_KEY),
      clock: systemClock,
      onUnusable: (id, error) => void reported.push({ id, error }),
    })
  const usable = ({ endpoints }: { readonly endpoints: readonly EndpointState[] }): string[] =>
    endpoints.flatMap(({ endpoint }) => (endpoint === undefined ? [] : [endpoint.id]))

  beforeEach(() => void reported.splice(0))

  it.each(INVALID_LIMITS)(
    'an endpoint with %j is unusable and is reported once per change',
    async (columns) => {
      const broken = await addEndpoint(db, 'https://broken.example/', columns)
      const healthy = await addEndpoint(db, 'https://healthy.example/')
      const cache = newCache()
      expect(usable(await cache.refresh())).toEqual([healthy.id])
      expect(usable(await cache.refresh())).toEqual([healthy.id])
      const [name = ''] = Object.keys(columns)
      expect(reported).toMatchObject([
        { id: broken.id, error: { message: expect.stringContaining(`${name} is `) } },
      ])
      // As somebody would by hand, without setting updated_at.
      const change = async (set: string): Promise<void> => {
        await db.query({
          text: `update leasehold.webhook_endpoints set ${set} where id = $1`,
          values: [broken.id],
        })
      }
      await change("description = 'still broken'")
      await cache.refresh()
      expect(reported).toHaveLength(2)
      await change('rate_per_second = null, concurrency = 1, timeout_ms = 1000')
      expect(new Set(usable(await cache.refresh()))).toEqual(new Set([broken.id, healthy.id]))
      expect(reported).toHaveLength(2)
    },
  )

  it('an endpoint whose previous secret cannot be read is usable, signs with the current one, and is reported', async () => {
    const { id } = await addEndpoint(db, 'https://healthy.example/')
    await db.query({
      text: `update leasehold.webhook_endpoints set previous_secret = 'enc1.damaged', previous_secret_until = now() + interval '1 day'`,
    })
    const cache = newCache()
    const { endpoints: states } = await cache.refresh()
    expect(states).toMatchObject([{ id, endpoint: { id } }])
    expect(states[0]?.endpoint?.signers(systemClock.monotonicNow())).toHaveLength(1)
    await cache.refresh()
    expect(reported).toMatchObject([{ id, error: { message: expect.stringContaining('previous secret') } }])
  })

  it('an endpoint whose circuit or previous secret never ends is usable', async () => {
    const { id } = await addEndpoint(db, 'https://healthy.example/', {
      failing_since: new Date(),
      open_until: 'infinity',
    })
    await db.query({
      text: `update leasehold.webhook_endpoints set previous_secret = secret, previous_secret_until = 'infinity'`,
    })
    const { endpoints: states } = await newCache().refresh()
    expect(states).toMatchObject([{ id, circuit_is_open: true, endpoint: { id } }])
    expect(states[0]?.open_for_ms).toBeGreaterThan(1e11)
    expect(states[0]?.endpoint?.signers(systemClock.monotonicNow())).toHaveLength(2)
    expect(reported).toEqual([])
  })
})

it('an endpoint with a rate of NaN gets nothing and is reported, and other endpoints are not affected', async () => {
  const [first, broken, second] = [await receiver(), await receiver(), await receiver()]
  await addEndpoint(db, first.url)
  const { id } = await addEndpoint(db, broken.url, { rate_per_second: 'NaN' })
  await addEndpoint(db, second.url, { ordered: true, rate_per_second: 1_000 })
  await sendAll(db, ...Array.from({ length: 20 }, (_, n) => `key ${n % 5}`))
  const events = new Events()
  const reported = collect(events, 'trouble', (all) => all.length > 0)
  await startDispatcher({}, { events })
  const [[trouble]] = await Promise.all([reported, first.reached(20), second.reached(20)])
  expect(trouble).toMatchObject({
    what: `using webhook endpoint ${id}`,
    error: { message: expect.stringContaining('rate_per_second is NaN') },
  })
  expect(broken.received).toEqual([])
  const waiting = (await deliveries(db)).filter(({ endpoint_id }) => endpoint_id === id)
  expect(
    waiting.every(({ delivery_status, attempts }) => delivery_status === 'pending' && attempts === 0),
  ).toBe(true)

  await db.query({
    text: 'update leasehold.webhook_endpoints set rate_per_second = 1000 where id = $1',
    values: [id],
  })
  await broken.reached(20)
})
