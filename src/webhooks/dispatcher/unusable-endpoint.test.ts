/** An endpoint with numbers that the table would refuse today: stored before a constraint, or by replication. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { collect } from '../../../test/support/running-worker.ts'
import { deliveries, sendAll, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint, forgetWebhooks, SECRET_KEY } from '../../../test/support/webhook-endpoints.ts'
import { systemClock } from '../../clock.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../../worker/index.ts'
import { secretKey } from '../signing/index.ts'
import { Directory, type Surveyed } from './directory.ts'

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

const NONSENSE = [
  { rate_per_second: 'NaN' },
  { rate_per_second: 'Infinity' },
  { rate_per_second: 0 },
  { rate_per_second: -1 },
  { concurrency: 0 },
  { timeout_ms: 0 },
  { timeout_ms: 2_147_483_647 },
]

describe('the directory', () => {
  const reported: { readonly id: string; readonly error: unknown }[] = []
  const directory = (): Directory =>
    new Directory({
      db,
      schema: 'leasehold',
      role: 'webhooks',
      worker: 'd',
      keys: () => secretKey(SECRET_KEY),
      clock: systemClock,
      onUnusable: (id, error) => void reported.push({ id, error }),
    })
  const usable = ({ endpoints }: { readonly endpoints: readonly Surveyed[] }): (string | undefined)[] =>
    endpoints.flatMap(({ endpoint }) => (endpoint === undefined ? [] : [endpoint.id]))

  beforeEach(() => void reported.splice(0))

  it.each(NONSENSE)('has no use for an endpoint with %j, and reports it once per change', async (columns) => {
    const broken = await addEndpoint(db, 'https://broken.example/', columns)
    const well = await addEndpoint(db, 'https://well.example/')
    const known = directory()
    expect(usable(await known.read())).toEqual([well.id])
    expect(usable(await known.read())).toEqual([well.id])
    const [name = ''] = Object.keys(columns)
    expect(reported).toMatchObject([
      { id: broken.id, error: { message: expect.stringContaining(`${name} is `) } },
    ])
    // By hand, as somebody in a hurry would: without updated_at.
    const change = async (set: string): Promise<void> => {
      await db.query({
        text: `update leasehold.webhook_endpoints set ${set} where id = $1`,
        values: [broken.id],
      })
    }
    await change("description = 'still broken'")
    await known.read()
    expect(reported).toHaveLength(2)
    await change('rate_per_second = null, concurrency = 1, timeout_ms = 1000')
    expect(new Set(usable(await known.read()))).toEqual(new Set([broken.id, well.id]))
    expect(reported).toHaveLength(2)
  })

  it('reads endpoints whose circuit, or former secret, has no end', async () => {
    const { id } = await addEndpoint(db, 'https://well.example/', {
      failing_since: new Date(),
      open_until: 'infinity',
    })
    await db.query({
      text: `update leasehold.webhook_endpoints set previous_secret = secret, previous_secret_until = 'infinity'`,
    })
    const { endpoints } = await directory().read()
    expect(endpoints).toMatchObject([{ id, failing: true, endpoint: { id } }])
    expect(endpoints[0]?.open_for_ms).toBeGreaterThan(1e11)
    expect(endpoints[0]?.endpoint?.signers(systemClock.monotonicNow())).toHaveLength(2)
    expect(reported).toEqual([])
  })
})

it('an endpoint whose rate is NaN gets nothing and is reported, and all others get theirs', async () => {
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
