import { once } from 'node:events'
import { startRuntime } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'
import { DataSource, EntitySchema, IsNull } from 'typeorm'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL } = process.env
const outbox = createOutbox()
const say = (text) => process.stdout.write(`${text}\n`)

const Order = new EntitySchema({
  name: 'orders',
  columns: {
    id: { type: 'bigint', primary: true, generated: 'identity', generatedIdentity: 'ALWAYS' },
    item: { type: 'text' },
    confirmedAt: { type: 'timestamptz', name: 'confirmed_at', nullable: true },
  },
})
const dataSource = new DataSource({
  type: 'postgres',
  url: DATABASE_URL,
  entities: [Order],
  synchronize: true,
})
await dataSource.initialize()

/** The order and its event are written in one transaction: both, or neither. */
async function placeOrder(item) {
  return dataSource.transaction(async (manager) => {
    const { id } = await manager.save(Order, { item })
    await outbox.enqueue(manager, { type: 'order.placed', payload: { order: id }, orderingKey: id })
    if (item === 'coffee') throw new Error('coffee is sold out')
    return id
  })
}

// An event can arrive twice, so what its handler does must be repeatable.
const publisher = handlers({
  'order.placed': async ({ payload: { order } }) => {
    await dataSource.manager.update(Order, { id: order, confirmedAt: IsNull() }, { confirmedAt: new Date() })
    say(`order ${order} is confirmed`)
  },
})
const runtime = await startRuntime({
  databaseUrl: DATABASE_URL,
  migrate: true,
  workers: [relay({ publisher })],
})

say(`order ${String(await placeOrder('tea'))} is placed`)
await placeOrder('coffee').catch((error) => say(`not placed, and no event: ${error.message}`))

await stopped
await runtime.stop()
await dataSource.destroy()
