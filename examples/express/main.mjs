import { once } from 'node:events'
import express from 'express'
import { startRuntime } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'
import { Pool } from 'pg'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL, PORT = '3000' } = process.env
const pool = new Pool({ connectionString: DATABASE_URL })
const outbox = createOutbox()

await pool.query(`create table if not exists orders (
  id bigint generated always as identity primary key, item text not null, confirmed_at timestamptz)`)

// An event can arrive twice, so what its handler does must be repeatable.
const publisher = handlers({
  'order.placed': async ({ payload: { order } }) => {
    await pool.query('update orders set confirmed_at = coalesce(confirmed_at, now()) where id = $1', [order])
    console.log(`order ${order} is confirmed`)
  },
})
const runtime = await startRuntime({
  databaseUrl: DATABASE_URL,
  migrate: true,
  workers: [relay({ publisher })],
})

/** The order and its event are written in one transaction: both, or neither. */
async function placeOrder(item) {
  const tx = await pool.connect()
  try {
    await tx.query('begin')
    const { rows } = await tx.query('insert into orders (item) values ($1) returning id, item', [item])
    const [order] = rows
    await outbox.enqueue(tx, { type: 'order.placed', payload: { order: order.id }, orderingKey: order.id })
    await tx.query('commit')
    return order
  } catch (error) {
    await tx.query('rollback')
    throw error
  } finally {
    tx.release()
  }
}

const app = express()
app.use(express.json())
app.post('/orders', async (request, response) => {
  response.status(201).json(await placeOrder(request.body.item))
})
app.get('/orders/:id', async (request, response) => {
  const { rows } = await pool.query('select * from orders where id = $1', [request.params.id])
  response.status(rows.length === 0 ? 404 : 200).json(rows[0] ?? { error: 'not found' })
})

const server = app.listen(Number(PORT), '127.0.0.1')
await once(server, 'listening')
console.log(`listening on http://127.0.0.1:${server.address().port}`)

// New requests are refused first; then requests and events in flight are completed.
await stopped
const closed = once(server, 'close')
server.close()
await Promise.all([closed, runtime.stop()])
await pool.end()
