import { openDatabase } from 'leasehold'
import { afterAll, beforeEach, expect, it } from 'vitest'
import { addEndpoint, runWebhooks } from '../examples/webhooks.ts'
import { loadSettings } from '../src/settings/index.ts'
import { useDatabase } from './support/database.ts'
import { marked, projectFile, snippets } from './support/snippets.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const SECRET_KEY = Buffer.alloc(32, 7).toString('base64')
const ACME = { url: 'http://127.0.0.1:9/hooks', by: { principal: 'the test' } }

afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({
    text: 'truncate leasehold.webhook_endpoints, leasehold.webhook_outbox, leasehold.webhook_attempts',
  })
})

async function deliveries(): Promise<unknown[]> {
  const text =
    'select event_type as type, ordering_key as key, delivery_status as status, attempts from leasehold.webhook_outbox order by id'
  return (await db.query({ text })).rows
}

it('the code in the guide is that of the examples, word for word', async () => {
  const regions = await marked('examples/webhooks.ts')
  expect(regions).toHaveLength(4)
  expect((await snippets('docs/webhooks.md', 'ts')).toSorted()).toEqual(regions.toSorted())
  expect(await snippets('docs/webhooks.md', 'sql')).toEqual([
    (await projectFile('examples/send-webhook.sql')).trim(),
  ])
  expect(await snippets('docs/webhooks.md', 'js')).toEqual([
    (await projectFile('examples/webhooks/leasehold.config.mjs')).trim(),
  ])
})

it('the example runs: both or neither, tried again, recognised, and signed with both secrets', async () => {
  const { arrivals, booked } = await runWebhooks(url)
  expect(arrivals.map(({ status }) => status)).toEqual([500, 204, 400, 400, 204, 204])
  expect(booked).toHaveLength(3)
  expect(await deliveries()).toMatchObject([
    { type: 'order.paid', status: 'delivered', attempts: 1 },
    { type: 'order.paid', status: 'delivered', attempts: 0 },
    { type: 'order.paid', status: 'delivered', attempts: 0 },
  ])
})

it('the example does not touch the endpoints of others', async () => {
  await addEndpoint(db, SECRET_KEY, ACME.url, ACME.by)
  await expect(runWebhooks(url)).rejects.toThrow('a database of its own')
})

it('the SQL of the guide sends its events to those who want them', async () => {
  await addEndpoint(db, SECRET_KEY, ACME.url, ACME.by)
  await db.query({ text: await projectFile('examples/send-webhook.sql') })
  expect(await deliveries()).toEqual([
    { type: 'order.shipped', key: 'order-7', status: 'pending', attempts: 0 },
  ])
})

it('the config of the guide declares a relay into the webhooks and a dispatcher, and dials nobody', async () => {
  const directory = new URL('../examples/webhooks', import.meta.url).pathname
  const { settings } = await loadSettings({
    flags: {},
    environment: { DATABASE_URL: 'postgresql://app@127.0.0.1:9/app' },
    workingDirectory: directory,
    terminal: false,
  })
  expect(settings.workers.map(({ name }) => name)).toEqual(['outbox', 'webhooks'])
})
