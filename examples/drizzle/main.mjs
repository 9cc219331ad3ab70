import { once } from 'node:events'
import { eq, sql } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/node-postgres'
import { bigint, pgTable, text, timestamp } from 'drizzle-orm/pg-core'
import { startRuntime } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'
import { Pool } from 'pg'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL } = process.env
const pool = new Pool({ connectionString: DATABASE_URL })
const db = drizzle(pool)
const outbox = createOutbox()

const orders = pgTable('orders', {
  id: bigint({ mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
  item: text().notNull(),
  confirmedAt: timestamp('confirmed_at', { withTimezone: true }),
})
await db.execute(sql`create table if not exists orders (
  id bigint generated always as identity primary key, item text not null, confirmed_at timestamptz)`)

/** The order and its event are written in one transaction: both, or neither. */
async function placeOrder(item) {
  return db.transaction(async (tx) => {
    const [{ id }] = await tx.insert(orders).values({ item }).returning()
    await outbox.enqueue(tx, { type: 'order.placed', payload: { order: id }, orderingKey: String(id) })
    if (item === 'coffee') throw new Error('coffee is sold out')
    return id
  })
}

// An event can arrive twice, so what its handler does must be repeatable.
const publisher = handlers({
  'order.placed': async ({ payload: { order } }) => {
    await db
      .update(orders)
      .set({ confirmedAt: sql`coalesce(confirmed_at, now())` })
      .where(eq(orders.id, order))
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
await pool.end()
