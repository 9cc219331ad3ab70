// The API. It neither knows nor cares who reconciles: with RECONCILER=embedded it does so itself, in this process.
import { once } from 'node:events'
import { createServer } from 'node:http'
import { getRequestListener } from '@hono/node-server'
import { Hono } from 'hono'
import { openDatabase, startRuntime } from 'leasehold'
import { createSync } from 'leasehold/sync'
import { reconcilePayments } from './payments.mjs'
import { databaseUrlOf, numberOf } from './settings.mjs'

const { RECONCILER, HOST = '127.0.0.1' } = process.env
const databaseUrl = databaseUrlOf()
const port = numberOf('PORT', 8080, { most: 65_535 })
const db = openDatabase({ url: databaseUrl, applicationName: 'payments api' })
const sync = createSync()
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
const SHOWN = 'id, address, amount, status, tx_hash, created_at, expires_at'

async function first(text, values) {
  return (await db.query({ text, values })).rows[0]
}

const app = new Hono()
app.get('/livez', (c) => c.json({ status: 'alive' }))
app.get('/readyz', async (c) => {
  const ready = await first('select 1 from app.payment_requests limit 1', []).then(
    () => true,
    () => false,
  )
  return c.json({ status: ready ? 'ready' : 'not ready' }, ready ? 200 : 503)
})

app.post('/payment-requests', async (c) => {
  const { amount, expiresInMs = 900_000 } = await c.req.json().catch(() => ({}))
  if (!Number.isSafeInteger(amount) || amount <= 0)
    return c.json({ error: 'amount must be a whole number' }, 400)
  if (!Number.isSafeInteger(expiresInMs)) return c.json({ error: 'expiresInMs must be a whole number' }, 400)
  const text = `insert into app.payment_requests (amount, expires_at)
    values ($1, now() + $2 * interval '1 millisecond') returning ${SHOWN}`
  return c.json(await first(text, [amount, expiresInMs]), 201)
})

app.get('/payment-requests/:id{[0-9a-f-]{36}}', async (c) => {
  const id = c.req.param('id')
  const found =
    UUID.test(id) && (await first(`select ${SHOWN} from app.payment_requests where id = $1`, [id]))
  return found ? c.json(found) : c.json({ error: `there is no payment request ${id}` }, 404)
})

/** A write as the API has always made it. A reconciler that has just observed the row finds it changed, and leaves it. */
app.post('/payment-requests/:id{[0-9a-f-]{36}}/cancel', async (c) => {
  const id = c.req.param('id')
  const text = `update app.payment_requests set status = 'expired'
    where id = $1 and status in ('pending', 'detected') returning ${SHOWN}`
  const cancelled = UUID.test(id) && (await first(text, [id]))
  return cancelled ? c.json(cancelled) : c.json({ error: `${id} is not open` }, 409)
})

app.post('/blocks', async (c) => {
  const { from, to } = await c.req.json().catch(() => ({}))
  if (!Number.isSafeInteger(from) || !Number.isSafeInteger(to))
    return c.json({ error: 'from and to are heights' }, 400)
  return c.json(await sync.enqueue(db, 'blocks', { matrixId: 'main', params: { from, to } }), 202)
})

app.onError((error, c) => {
  process.stderr.write(`${error.stack}\n`)
  return c.json({ error: 'something went wrong' }, 500)
})

// begin
const runtime =
  RECONCILER === 'embedded'
    ? await startRuntime({ databaseUrl, migrate: false, workers: [reconcilePayments()] })
    : undefined
// end
const answer = getRequestListener(app.fetch, { hostname: 'localhost' })
const server = createServer((request, response) => void answer(request, response)).listen(port, HOST)
await once(server, 'listening')
process.stdout.write(`  HTTP       http://127.0.0.1:${server.address().port}\n`)
if (runtime !== undefined) process.stdout.write(`  Worker id  ${runtime.id}\n`)

await Promise.race(['SIGTERM', 'SIGINT'].map(async (signal) => once(process, signal)))
server.close()
server.closeAllConnections()
const { clean } = (await runtime?.stop()) ?? { clean: true }
await db.close()
process.exitCode = clean ? 0 : 1
