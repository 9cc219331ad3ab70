import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { Events, migrate, openDatabase, startRuntime } from 'leasehold'
import { createWebhooks, dispatcher, endpoints, LOOPBACK, replay } from 'leasehold/webhooks'
import { startReceiver } from './receiver.mjs'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL } = process.env
const BY = { principal: 'the example' }
// In production: LEASEHOLD_SECRET_KEY, and no `network`, so that deliveries go to public addresses only.
const secretKey = randomBytes(32).toString('base64')
const network = { allow: LOOPBACK }

const db = openDatabase({ url: DATABASE_URL })
await migrate(db)
await db.query({
  text: `create table if not exists orders (
    id bigint generated always as identity primary key, item text not null, confirmed_at timestamptz)`,
})

// Two customers. The second one is down at first.
let isDown = true
const secrets = {}
const steady = await startReceiver('steady', { secretOf: () => secrets.steady })
const flaky = await startReceiver('flaky', { secretOf: () => secrets.flaky, isDown: () => isDown })

const managed = endpoints(db, { secretKey, network })
// Those of an earlier start have other secrets and ports.
for (const { id } of (await managed.list()).endpoints) await managed.delete(id, BY)
const eventTypes = ['order.*']
;({ secret: secrets.steady } = await managed.create({ url: steady.url, eventTypes }, BY))
const { secret, endpoint } = await managed.create({ url: flaky.url, eventTypes }, BY)
secrets.flaky = secret

// Two attempts, half a second apart, instead of ten within three days.
const events = new Events()
const workers = [dispatcher({ secretKey, network, schedule: [500] })]
const runtime = await startRuntime({ databaseUrl: DATABASE_URL, workers, events })

/** The order and its deliveries are written in one transaction: both, or neither. */
const webhooks = createWebhooks()
const failed = events.next('settled', ({ outcome }) => outcome === 'dead')
await db.transaction(async (tx) => {
  const { rows } = await tx.query({ text: "insert into orders (item) values ('tea') returning id" })
  await webhooks.send(tx, { type: 'order.placed', payload: { order: rows[0].id } })
})

await failed
console.log('the delivery to flaky has failed for good')
isDown = false
const { changed } = await replay(db, {
  filter: { status: 'failed', endpoint: endpoint.id },
  reason: 'the receiver is back',
  ...BY,
})
console.log(`flaky is back: ${changed} delivery was replayed`)

await stopped
await runtime.stop()
steady.close()
flaky.close()
await db.close()
