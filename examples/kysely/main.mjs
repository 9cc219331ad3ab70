import { once } from 'node:events'
import { Kysely, PostgresDialect, sql } from 'kysely'
import { startRuntime } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'
import { Pool } from 'pg'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL } = process.env
const db = new Kysely({
  dialect: new PostgresDialect({ pool: new Pool({ connectionString: DATABASE_URL }) }),
})
const outbox = createOutbox()

await sql`create table if not exists orders (
  id bigint generated always as identity primary key, item text not null, confirmed_at timestamptz)`.execute(
  db,
)

/** The order and its event are written in one transaction: both, or neither. */
async function placeOrder(item) {
  return db.transaction().execute(async (trx) => {
    const { id } = await trx.insertInto('orders').values({ item }).returning('id').executeTakeFirstOrThrow()
    await outbox.enqueue(trx, { type: 'order.placed', payload: { order: id }, orderingKey: id })
    if (item === 'coffee') throw new Error('coffee is sold out')
    return id
  })
}

// An event can arrive twice, so what its handler does must be repeatable.
const publisher = handlers({
  'order.placed': async ({ payload: { order } }) => {
    await db
      .updateTable('orders')
      .set({ confirmed_at: sql`coalesce(confirmed_at, now())` })
      .where('id', '=', order)
      .execute()
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
await db.destroy()
