// Webhooks from end to end: orders and their events in one transaction, a dispatcher, and a receiver on loopback that
// verifies, fails once, is sent a forgery and an old request, and after a rotation has another secret. A test runs this
// file. By itself, with Node 22.18 or later: `node examples/webhooks.ts`, on the database in DATABASE_URL, or on an
// embedded one in .leasehold/example. docs/guides/webhooks.md shows what is between the marks, README.md the first of it.
import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { migrate, openDatabase, type Database } from 'leasehold'
import { endpoints, isWebhookInvalid, LOOPBACK, rememberIds, verifier, type By } from 'leasehold/webhooks'
import { Pool } from 'pg'

// begin
import { Events, startRuntime } from 'leasehold'
import { createWebhooks, dispatcher, type DispatcherOptions } from 'leasehold/webhooks'
import type { ClientBase } from 'pg'

const webhooks = createWebhooks<{ 'order.paid': { order: string; total: number } }>()

/** In your transaction: the order is paid and the deliveries to the tenant's endpoints are written, or neither. */
export async function pay(tx: ClientBase, tenant: string, order: string, total: number) {
  await tx.query('update shop.orders set paid = $2 where id = $1', [order, total])
  return webhooks.send(tx, { type: 'order.paid', payload: { order, total }, tenant, orderingKey: order })
}

/** In any number of processes: signs and delivers what was committed. */
export async function startDispatcher(databaseUrl: string, options: DispatcherOptions, events: Events) {
  return startRuntime({ databaseUrl, migrate: true, workers: [dispatcher(options)], events })
}
// end

const SHOP = `create schema if not exists shop;
create table if not exists shop.orders (id uuid primary key, paid int, shipped boolean not null default false)`
const TENANT = 'acme'
const BY: By = { principal: 'examples/webhooks.ts', reason: 'to show how it goes' }

/** Creates an endpoint for what happens to orders. Its secret is in the answer, and in no other. */
export async function addEndpoint(db: Database, secretKey: string, url: string, by: By) {
  // begin
  const managed = endpoints(db, { secretKey, network: { allow: LOOPBACK } })
  const { endpoint, secret } = await managed.create(
    { url, tenant: 'acme', eventTypes: ['order.*'], ratePerSecond: 50, concurrency: 5, ordered: true },
    by,
  )
  // end
  return { managed, endpoint, secret }
}

// begin
/** A request listener for node:http. `handle` gets only recent requests that were signed with the secret. */
export function receiver(secret: string, handle: (id: string, payload: unknown) => Promise<void>) {
  const check = verifier(secret, { seen: rememberIds() })
  return async (request: IncomingMessage, response: ServerResponse) => {
    try {
      const { id, payload } = await check({ headers: request.headers, body: await buffer(request) })
      await handle(id, payload) // the same id can arrive twice: store it with the effect
      response.writeHead(204).end()
    } catch (error) {
      response.writeHead(isWebhookInvalid(error) ? 400 : 500).end()
    }
  }
}
// end

/** A request as it came over the wire. */
interface Arrival {
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
  readonly status: number
}

export interface Told {
  /** Every request that came, in this order. */
  readonly arrivals: readonly Arrival[]
  /** Orders that the receiver has booked, once each. */
  readonly booked: readonly string[]
}

/** Sells two things, has a receiver told of it, and checks that everything arrived as promised. */
export async function runWebhooks(databaseUrl: string): Promise<Told> {
  const db = openDatabase({ url: databaseUrl })
  const pool = new Pool({ connectionString: databaseUrl, max: 2 })
  const server = createServer()
  try {
    await migrate(db)
    await refuseForeignEndpoints(db)
    await db.query({ text: SHOP })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    return await sell({ databaseUrl, db, pool, server })
  } finally {
    server.closeAllConnections()
    server.close()
    await pool.end()
    await db.close()
  }
}

interface Shop {
  readonly databaseUrl: string
  readonly db: Database
  readonly pool: Pool
  readonly server: Server
}

async function sell({ databaseUrl, db, pool, server }: Shop): Promise<Told> {
  const secretKey = randomBytes(32).toString('base64')
  const url = addressOf(server)
  const { managed, endpoint, secret } = await addEndpoint(db, secretKey, url, BY)

  const arrivals: Arrival[] = []
  const booked = new Map<string, string>()
  let refusals = 1
  const book = async (id: string, payload: unknown): Promise<void> => {
    // What is thrown is answered with 500, and the event comes again.
    refusals -= 1
    if (refusals === 0) throw new Error('the ledger is busy')
    booked.set(id, orderOf(payload))
  }
  const listen = (trusted: string): void => {
    server.removeAllListeners('request')
    server.on('request', recording(arrivals, receiver(trusted, book)))
  }
  listen(secret)

  const [first, second] = [randomUUID(), randomUUID()]
  await inTransaction(pool, async (tx) => {
    await tx.query('insert into shop.orders (id) values ($1), ($2)', [first, second])
    assert.equal((await pay(tx, TENANT, first, 100)).deliveries, 1)
  })
  // A transaction that fails takes its event with it, and an event of another tenant is nobody's here.
  const cancelled = inTransaction(pool, async (tx) => {
    await pay(tx, TENANT, second, 1_000_000)
    throw new Error('the card was refused')
  })
  await assert.rejects(cancelled, /the card was refused/)
  await inTransaction(pool, async (tx) => assert.equal((await pay(tx, 'other', second, 1)).deliveries, 0))

  const events = new Events()
  const delivered = async (): Promise<unknown> => events.next('settled', ({ outcome }) => outcome === 'done')
  const firstDelivered = delivered()
  // Tried again after a second and a half instead of five. Less than a second would be the same moment for `seen`.
  const options = { secretKey, network: { allow: LOOPBACK }, schedule: [1_500, 5_000] }
  const running = await startDispatcher(databaseUrl, options, events)
  await firstDelivered
  assert.deepEqual(
    arrivals.map(({ status }) => status),
    [500, 204],
  )
  const [failed, accepted] = arrivals
  assert.ok(failed && accepted)
  assert.equal(accepted.headers['webhook-id'], failed.headers['webhook-id'])
  assert.equal(accepted.headers['webhook-attempt'], '2')

  // The same request once more, and one that somebody has changed.
  assert.equal(await post(url, accepted), 400)
  assert.equal(await post(url, { ...failed, body: failed.body.replace('100', '1') }), 400)

  // A new secret: for an hour both sign, so receivers can change over when it suits them.
  // begin
  const rotated = await managed.rotateSecret(endpoint.id, BY, { keepOldForMs: 3_600_000 })
  // end
  const secondDelivered = delivered()
  await inTransaction(pool, async (tx) => pay(tx, TENANT, second, 200))
  await secondDelivered
  const both = arrivals.at(-1)
  assert.equal(both?.headers['webhook-signature']?.split(' ').length, 2)

  listen(rotated.secret)
  const thirdDelivered = delivered()
  await inTransaction(pool, async (tx) => pay(tx, TENANT, first, 0))
  await thirdDelivered
  assert.deepEqual(await running.stop(), { clean: true })
  return { arrivals, booked: [...booked.values()] }
}

/** Writes down what comes and how it was answered, before the answer is sent. */
function recording(
  arrivals: Arrival[],
  listener: (request: IncomingMessage, response: ServerResponse) => Promise<void>,
) {
  return (request: IncomingMessage, response: ServerResponse): void => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    const writeHead = response.writeHead.bind(response)
    response.writeHead = (status: number) => {
      const headers = Object.fromEntries(
        Object.entries(request.headers).flatMap(([name, value]) =>
          typeof value === 'string' ? [[name, value]] : [],
        ),
      )
      arrivals.push({ headers, body: Buffer.concat(chunks).toString(), status })
      return writeHead(status)
    }
    void listener(request, response)
  }
}

async function post(url: string, { headers, body }: Arrival): Promise<number> {
  const signed = Object.entries(headers).filter(([name]) => /^(?:webhook-|content-type)/.test(name))
  const { status } = await fetch(url, { method: 'POST', headers: Object.fromEntries(signed), body })
  return status
}

function orderOf(payload: unknown): string {
  // Whoever holds the secret sent it, in the form that Standard Webhooks recommends.
  return (payload as { readonly data: { readonly order: string } }).data.order
}

function addressOf(server: Server): string {
  const address = server.address()
  assert.ok(address !== null && typeof address !== 'string')
  return `http://127.0.0.1:${address.port}/hooks`
}

async function inTransaction(pool: Pool, work: (tx: ClientBase) => Promise<unknown>): Promise<void> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    await work(client)
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

/** The dispatcher here would take what waits for endpoints of yours, whose secrets it cannot read. */
async function refuseForeignEndpoints(db: Database): Promise<void> {
  const { endpoints: found } = await endpoints(db).list({ limit: 1 })
  if (found.length === 0) return
  throw new Error('There are webhook endpoints already: give the example a database of its own.')
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { DATABASE_URL } = process.env
  const { startEmbedded } = await import('leasehold/embedded')
  const server = DATABASE_URL ? undefined : await startEmbedded({ directory: '.leasehold/example' })
  try {
    const { arrivals, booked } = await runWebhooks(DATABASE_URL || (server?.url ?? ''))
    for (const { headers, body, status } of arrivals) {
      process.stdout.write(`${headers['webhook-id']}, answered with ${status}: ${body}\n`)
    }
    process.stdout.write(`${arrivals.length} requests, and ${booked.length} bookings\n`)
  } finally {
    await server?.stop()
  }
}
