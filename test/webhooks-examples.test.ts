import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { openDatabase } from 'leasehold'
import { newSecret } from 'leasehold/webhooks'
import { afterAll, afterEach, beforeEach, expect, it, vi } from 'vitest'
import { bringBack, giveUp, whatHappened } from '../examples/operate-webhooks.ts'
import { addEndpoint, runWebhooks } from '../examples/webhooks.ts'
import { loadSettings } from '../src/config/load.ts'
import { signer, webhookHeaders } from '../src/webhooks/signing/sign.ts'
import { useDatabase } from './support/database.ts'
import { useProcesses } from './support/processes.ts'
import { marked, projectFile, snippets } from './support/project-files.ts'

const { url } = useDatabase()
const { spawnNode } = useProcesses()
const db = openDatabase({ url })
const SECRET_KEY = Buffer.alloc(32, 7).toString('base64')
const ACME = { url: 'http://127.0.0.1:9/hooks', by: { principal: 'the test' } }

afterAll(async () => db.close())
afterEach(() => vi.unstubAllEnvs())
beforeEach(async () => {
  await db.query({
    text: 'truncate leasehold.webhook_endpoints, leasehold.webhook_outbox',
  })
})

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  // A server that listens has an address and a port.
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}

async function deliveries(): Promise<unknown[]> {
  const text =
    'select event_type as type, ordering_key as key, delivery_status as status, attempts from leasehold.webhook_outbox order by id'
  return (await db.query({ text })).rows
}

it('the code in the webhooks guide is identical to that of the examples', async () => {
  const files = ['examples/webhooks.ts', 'examples/operate-webhooks.ts']
  const regions = (await Promise.all(files.map(marked))).flat()
  expect(regions).toHaveLength(6)
  expect((await snippets('docs/guides/webhooks.md', 'ts')).toSorted()).toEqual(regions.toSorted())
  expect(await snippets('docs/guides/webhooks.md', 'sql')).toEqual([
    (await projectFile('examples/send-webhook.sql')).trim(),
  ])
  expect(await snippets('docs/guides/webhooks.md', 'js')).toEqual([
    (await projectFile('examples/receiver.mjs')).trim(),
    (await projectFile('examples/webhooks/leasehold.config.mjs')).trim(),
  ])
})

it('the webhook example sends atomically, retries, lets the receiver detect duplicates, and signs with both secrets', async () => {
  const { arrivals, booked } = await runWebhooks(url)
  expect(arrivals.map(({ status }) => status)).toEqual([500, 204, 400, 400, 204, 204])
  expect(booked).toHaveLength(3)
  expect(await deliveries()).toMatchObject([
    { type: 'order.paid', status: 'delivered', attempts: 1 },
    { type: 'order.paid', status: 'delivered', attempts: 0 },
    { type: 'order.paid', status: 'delivered', attempts: 0 },
  ])
})

it('the webhook example does not touch other endpoints', async () => {
  await addEndpoint(db, SECRET_KEY, ACME.url, ACME.by)
  await expect(runWebhooks(url)).rejects.toThrow('a database of its own')
})

it('the SQL in the guide sends its events to the subscribed endpoints', async () => {
  await addEndpoint(db, SECRET_KEY, ACME.url, ACME.by)
  await db.query({ text: await projectFile('examples/send-webhook.sql') })
  expect(await deliveries()).toEqual([
    { type: 'order.shipped', key: 'order-7', status: 'pending', attempts: 0 },
  ])
})

it('the configuration in the guide declares a relay to webhooks and a dispatcher without opening a connection', async () => {
  vi.stubEnv('DATABASE_URL', 'postgresql://app@127.0.0.1:9/app')
  const directory = new URL('../examples/webhooks', import.meta.url).pathname
  const { settings } = await loadSettings({
    flags: {},
    environment: {},
    workingDirectory: directory,
    terminal: false,
  })
  expect(settings.workers.map(({ name }) => name)).toEqual(['outbox', 'webhooks'])
})

it('the receiver in the guide accepts only requests that were signed with its secret', async () => {
  const port = await freePort()
  const secret = newSecret('v1')
  const receiver = spawnNode('examples/receiver.mjs', [], { env: { SECRET: secret, PORT: String(port) } })
  await receiver.line((line) => line === 'listening')
  const post = async (signedWith: string): Promise<number> => {
    const body = '{"type":"order.paid"}'
    const headers = webhookHeaders({
      id: 'msg_1',
      timestampSeconds: Math.floor(Date.now() / 1_000),
      body,
      signers: [signer(signedWith)],
      attempt: 1,
    })
    return (await fetch(`http://127.0.0.1:${port}/hooks`, { method: 'POST', headers, body })).status
  }
  expect([await post(newSecret('v1')), await post(secret)]).toEqual([400, 204])
  await receiver.line((line) => line === 'msg_1 {"type":"order.paid"}')
  await receiver.kill()
})

it('the operator example replays failed deliveries and cancels pending ones', async () => {
  const { endpoint } = await addEndpoint(db, SECRET_KEY, ACME.url, ACME.by)
  await db.query({
    text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body)
      select $1, type, '{}' from unnest(array['order.paid', 'order.paid', 'order.paid', 'order.test']) as type`,
    values: [endpoint.id],
  })
  await db.query({
    text: `update leasehold.webhook_outbox set delivery_status = 'failed', failed_at = now(), attempts = 1,
      last_attempt_at = now(), last_error_code = 'timeout',
      history = jsonb_build_array(jsonb_build_object('attempt', 1, 'token', 1, 'error_code', 'timeout', 'recorded_at', now()))
      where event_type = 'order.paid'`,
  })
  const since = new Date(Date.now() - 3_600_000)
  const { first, matched, rest } = await bringBack(db, endpoint.id, since, 'ada')
  expect([first.changed, matched, rest.changed]).toEqual([1, 2, 2])
  expect(await giveUp(db, endpoint.id, 'ada')).toEqual({ changed: 1, counts: { inFlight: 0 } })
  expect(await deliveries()).toMatchObject([
    { status: 'pending', attempts: 0 },
    { status: 'pending', attempts: 0 },
    { status: 'pending', attempts: 0 },
    { status: 'failed', type: 'order.test' },
  ])
  const { rows } = await db.query<{ id: string }>({
    text: 'select min(id)::text as id from leasehold.webhook_outbox',
  })
  expect(await whatHappened(db, rows[0]?.id ?? '')).toEqual(['timeout'])
})
