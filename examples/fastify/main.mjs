import { once } from 'node:events'
import fastify from 'fastify'
import { openDatabase, startRuntime } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL, PORT = '3000' } = process.env
// Leasehold's own pool, where an application has no other.
const db = openDatabase({ url: DATABASE_URL })
const outbox = createOutbox()

await db.query({
  text: `create table if not exists orders (
    id bigint generated always as identity primary key, item text not null, confirmed_at timestamptz)`,
})

// An event can arrive twice, so what its handler does must be repeatable.
const publisher = handlers({
  'order.placed': async ({ payload: { order } }) => {
    await db.query({
      text: 'update orders set confirmed_at = coalesce(confirmed_at, now()) where id = $1',
      values: [order],
    })
    console.log(`order ${order} is confirmed`)
  },
})

const app = fastify()

app.post('/orders', async (request, reply) => {
  // The order and its event are written in one transaction: both, or neither.
  const order = await db.transaction(async (tx) => {
    const text = 'insert into orders (item) values ($1) returning id, item'
    const { rows } = await tx.query({ text, values: [request.body.item] })
    const [{ id }] = rows
    await outbox.enqueue(tx, { type: 'order.placed', payload: { order: id }, orderingKey: id })
    return rows[0]
  })
  return reply.code(201).send(order)
})

app.get('/orders/:id', async (request, reply) => {
  const text = 'select * from orders where id = $1'
  const { rows } = await db.query({ text, values: [request.params.id] })
  return rows[0] ?? reply.code(404).send({ error: 'not found' })
})

// The worker starts before the server listens, and stops when the server has closed.
const runtime = await startRuntime({
  databaseUrl: DATABASE_URL,
  migrate: true,
  workers: [relay({ publisher })],
})
app.addHook('onClose', async () => {
  await runtime.stop()
  await db.close()
})

console.log(`listening on ${await app.listen({ port: Number(PORT), host: '127.0.0.1' })}`)

await stopped
await app.close()
