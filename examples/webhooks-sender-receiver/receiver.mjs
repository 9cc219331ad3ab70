// What a customer runs. It knows nothing of Leasehold: any library for Standard Webhooks verifies the signature.
import { once } from 'node:events'
import { createServer } from 'node:http'
import { text } from 'node:stream/consumers'
import { Webhook } from 'standardwebhooks'

/** Listens on loopback. `secretOf` is asked with each request, because the secret exists only after the URL does. */
export async function startReceiver(name, { secretOf, isDown = () => false }) {
  const seen = new Set()

  async function receive(request, response) {
    const body = await text(request)
    if (isDown()) return response.writeHead(503).end()
    try {
      const { type, data } = new Webhook(secretOf()).verify(body, request.headers)
      // A delivery can arrive twice, with the same id. A real receiver would store the id together with the effect.
      const id = request.headers['webhook-id']
      if (!seen.has(id)) console.log(`${name} received ${type} ${JSON.stringify(data)}`)
      seen.add(id)
      return response.writeHead(204).end()
    } catch (error) {
      console.log(`${name} refused a request: ${error.message}`)
      return response.writeHead(400).end()
    }
  }

  const server = createServer((request, response) => void receive(request, response))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${server.address().port}/hooks`,
    close() {
      server.close()
      server.closeAllConnections()
    },
  }
}
