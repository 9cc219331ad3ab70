import { once } from 'node:events'
import { PrismaPg } from '@prisma/adapter-pg'
import { startRuntime } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'
import { PrismaClient } from './generated/index.js'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL } = process.env
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: DATABASE_URL }) })
const outbox = createOutbox()

await prisma.$executeRaw`create table if not exists orders (
  id bigint generated always as identity primary key, item text not null, confirmed_at timestamptz)`

/** The order and its event are written in one transaction: both, or neither. */
async function placeOrder(item) {
  return prisma.$transaction(async (tx) => {
    const { id } = await tx.order.create({ data: { item } })
    const order = String(id)
    await outbox.enqueue(tx, { type: 'order.placed', payload: { order }, orderingKey: order })
    if (item === 'coffee') throw new Error('coffee is sold out')
    return order
  })
}

// An event can arrive twice, so what its handler does must be repeatable.
const publisher = handlers({
  'order.placed': async ({ payload: { order } }) => {
    const unconfirmed = { id: BigInt(order), confirmedAt: null }
    await prisma.order.updateMany({ where: unconfirmed, data: { confirmedAt: new Date() } })
    console.log(`order ${order} is confirmed`)
  },
})
const runtime = await startRuntime({
  databaseUrl: DATABASE_URL,
  migrate: true,
  workers: [relay({ publisher })],
})

console.log(`order ${await placeOrder('tea')} is placed`)
await placeOrder('coffee').catch((error) => console.log(`not placed, and no event: ${error.message}`))

await stopped
await runtime.stop()
await prisma.$disconnect()
