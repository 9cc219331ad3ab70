import { once } from 'node:events'
import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect, headers } from '@nats-io/transport-node'
import { migrate, openDatabase, startRuntime } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { natsPublisher } from 'leasehold/publishers/nats'
import { consume } from './consumer.mjs'
import { startNats } from './nats-server.mjs'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL, NATS_URL } = process.env
const server = NATS_URL ? undefined : await startNats()
const servers = NATS_URL || server.url

const db = openDatabase({ url: DATABASE_URL })
await migrate(db)
await db.query({
  text: `create table if not exists orders (
    id bigint generated always as identity primary key, item text not null, confirmed_at timestamptz)`,
})

const connection = await connect({ servers })
const manager = await jetstreamManager(connection)
await manager.streams.add({ name: 'shop', subjects: ['shop.>'] })
await manager.consumers.add('shop', { durable_name: 'confirmations', ack_policy: AckPolicy.Explicit })
const messages = await (await jetstream(connection).consumers.get('shop', 'confirmations')).consume()
const consumed = consume(messages, db)

const publisher = natsPublisher({ connect: { servers }, prefix: 'shop.' })
const runtime = await startRuntime({ databaseUrl: DATABASE_URL, workers: [relay({ publisher })] })

const outbox = createOutbox()

/** The order and its event are written in one transaction: both, or neither. */
async function placeOrder(item) {
  return db.transaction(async (tx) => {
    const text = 'insert into orders (item) values ($1) returning id'
    const { rows } = await tx.query({ text, values: [item] })
    const order = String(rows[0].id)
    const event = { type: 'order.placed', payload: { order }, orderingKey: order }
    return { order, ...(await outbox.enqueue(tx, event)) }
  })
}

await placeOrder('tea')
const { order, eventId } = await placeOrder('sugar')

// A relay that dies before it can settle an event publishes it again. The stream drops the copy within two minutes of
// the first; this is what a later one looks like to the consumer.
const copied = headers()
copied.set('leasehold-event-id', eventId)
await jetstream(connection).publish('shop.order.placed', JSON.stringify({ order }), { headers: copied })

await stopped
await runtime.stop()
await messages.close()
await consumed
await connection.close()
await db.close()
await server?.stop()
