/** Webhooks to three customers, in this process on loopback: one answers, one fails often, one is down. */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Database } from '../../postgres/index.ts'
import { dispatcher } from '../../webhooks/dispatcher/dispatcher.ts'
import { endpoints } from '../../webhooks/endpoints/endpoints.ts'
import { LOOPBACK } from '../../webhooks/network/policy.ts'
import { createWebhooks } from '../../webhooks/send/send.ts'
import type { WorkDeclaration } from '../../worker/index.ts'
import { pause } from '../../worker/loop.ts'
import type { DemoPart } from './demo.ts'

export type Customers = DemoPart

const BY = { principal: 'demo', reason: 'the demo has started' }
const NETWORK = { allow: LOOPBACK }

/** How one of them answers, and how often it is told something. */
const CUSTOMERS: readonly {
  readonly tenant: string
  readonly description: string
  readonly everyMs: number
  readonly answer: () => { readonly status: number; readonly afterMs: number; readonly body: string }
}[] = [
  {
    tenant: 'acme',
    description: 'answers, now and then slowly',
    everyMs: 700,
    answer: () => ({ status: 200, afterMs: oneIn(8) ? 4_000 : 30, body: '{"received":true}' }),
  },
  {
    tenant: 'globex',
    description: 'fails often',
    everyMs: 1_500,
    answer: () =>
      Math.random() < 0.45
        ? { status: 500, afterMs: 200, body: 'Internal Server Error: too many connections' }
        : { status: 204, afterMs: 80, body: '' },
  },
  {
    tenant: 'initech',
    description: 'is down',
    everyMs: 5_000,
    answer: () => ({ status: 503, afterMs: 20, body: 'Service Unavailable' }),
  },
]

function oneIn(count: number): boolean {
  return Math.random() * count < 1
}

export function customers(schema: string, secretKey: string, stopping: AbortSignal): Customers {
  const webhooks = createWebhooks<{ 'order.paid': { readonly order: number } }>({ schema })
  const receiver = createServer((request, response) => void answer(request, response, stopping))
  const worker = dispatcher({
    schema,
    secretKey,
    network: NETWORK,
    // Short enough to watch.
    schedule: [2_000, 6_000],
    circuitBreaker: { openMs: 20_000, maxOpenMs: 60_000 },
  })
  let orders = 0
  return {
    // Only the handler knows the type of the rows; here they are passed on.
    workers: [worker as unknown as WorkDeclaration],
    async prepare(db) {
      await listen(receiver)
      await addEndpoints(db, schema, secretKey, receiver)
    },
    loops: CUSTOMERS.map(({ tenant, everyMs }) => ({
      name: `webhooks to ${tenant}`,
      everyMs,
      async work(db) {
        orders += 1
        await webhooks.send(db, { type: 'order.paid', payload: { order: orders }, tenant })
      },
    })),
    close: async () => close(receiver),
  }
}

async function answer(
  { url = '' }: IncomingMessage,
  response: ServerResponse,
  stopping: AbortSignal,
): Promise<void> {
  const customer = CUSTOMERS.find(({ tenant }) => url === `/${tenant}`)
  const { status, afterMs, body } = customer?.answer() ?? { status: 404, afterMs: 0, body: '' }
  await pause(afterMs, stopping)
  response.writeHead(status).end(body)
}

async function listen(server: Server): Promise<void> {
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  // The process ends when everything else has stopped, even if it never got as far as stopping the demo.
  server.unref()
}

async function close(server: Server): Promise<void> {
  if (!server.listening) return
  server.close()
  server.closeAllConnections()
  await once(server, 'close')
}

/** An earlier run may have created them; the port is another in every run. */
async function addEndpoints(db: Database, schema: string, secretKey: string, server: Server): Promise<void> {
  const managed = endpoints(db, { schema, secretKey, network: NETWORK })
  const address = server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  for (const { tenant, description } of CUSTOMERS) {
    const url = `http://127.0.0.1:${port}/${tenant}`
    const found = (await managed.list({ tenant })).endpoints.find((each) => each.description === description)
    if (found === undefined)
      await managed.create(
        { url, tenant, description, eventTypes: ['order.*'], ordered: tenant === 'acme' },
        BY,
      )
    else await managed.update(found.id, { url }, BY)
  }
}
